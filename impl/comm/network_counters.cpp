#include "impl/comm/network_counters.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "impl/base/error.h"

namespace lamina {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code missing;  // no such folder: no such network
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    entries.push_back(entry.path());
  }
  return entries;
}

void add(std::vector<PortBytes>& ports, const std::string& name, const fs::path& sent, const fs::path& received,
         std::int64_t unit_bytes) {
  const auto out = number_in(sent);
  const auto in = number_in(received);
  if (out && in) {
    ports.push_back({name, *out * unit_bytes, *in * unit_bytes});
  }
}

}  // namespace

std::vector<PortBytes> network_counters(const std::string& system) {
  std::vector<PortBytes> ports;
  for (const fs::path& interface : entries_of(system + "/sys/class/net")) {
    add(ports, interface.filename(), interface / "statistics/tx_bytes", interface / "statistics/rx_bytes", 1);
  }
  constexpr std::int64_t kInfinibandUnit = 4;  // port_*_data count 32-bit words
  for (const fs::path& device : entries_of(system + "/sys/class/infiniband")) {
    for (const fs::path& port : entries_of(device / "ports")) {
      add(ports, fmt::format("infiniband {}/{}", device.filename().string(), port.filename().string()),
          port / "counters/port_xmit_data", port / "counters/port_rcv_data", kInfinibandUnit);
    }
  }
  std::sort(ports.begin(), ports.end(), [](const auto& a, const auto& b) { return a.port < b.port; });
  return ports;
}

std::vector<PortBytes> counted_between(const std::vector<PortBytes>& before, const std::vector<PortBytes>& after) {
  std::vector<PortBytes> between;
  for (const PortBytes& now : after) {
    const auto then = std::find_if(before.begin(), before.end(), [&](const auto& one) { return one.port == now.port; });
    if (then != before.end()) {
      between.push_back({now.port, now.sent - then->sent, now.received - then->received});
    }
  }
  return between;
}

}  // namespace lamina
