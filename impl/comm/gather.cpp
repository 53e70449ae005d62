#include "impl/comm/gather.h"

#include <numeric>

namespace lamina {
namespace {

constexpr TrafficTag kControl{TrafficKind::control, UnitKind::layer};

void send_text(Communicator& group, int peer, const std::string& text) {
  const auto size = static_cast<std::int64_t>(text.size());
  group.send(peer, std::as_bytes(std::span(&size, 1)), kControl)->wait();
  if (size > 0) {
    group.send(peer, std::as_bytes(std::span(text)), kControl)->wait();
  }
}

std::string receive_text(Communicator& group, int peer) {
  std::int64_t size = 0;
  group.receive(peer, std::as_writable_bytes(std::span(&size, 1)))->wait();
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size > 0) {
    group.receive(peer, std::as_writable_bytes(std::span(text)))->wait();
  }
  return text;
}

}  // namespace

std::vector<std::string> gather_on_first(Communicator& group, const std::string& mine) {
  if (group.rank() != 0) {
    send_text(group, 0, mine);
    return {};
  }
  std::vector<std::string> texts{mine};
  for (int peer = 1; peer < group.size(); ++peer) {
    texts.push_back(receive_text(group, peer));
  }
  return texts;
}

std::string spread_from_first(Communicator& group, const std::string& text) {
  if (group.rank() != 0) {
    return receive_text(group, 0);
  }
  for (int peer = 1; peer < group.size(); ++peer) {
    send_text(group, peer, text);
  }
  return text;
}

std::unique_ptr<Communicator> group_of_all(Transport& transport) {
  std::vector<int> all(static_cast<std::size_t>(transport.size()));
  std::iota(all.begin(), all.end(), 0);
  return transport.group(all);
}

}  // namespace lamina
