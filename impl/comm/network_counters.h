// What the network interfaces of this host have counted: to hold the traffic ledger against the wire.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lamina {

struct PortBytes {
  std::string port;  // "eth0", "infiniband mlx5_0/1"
  std::int64_t sent = 0;
  std::int64_t received = 0;
  bool operator==(const PortBytes&) const = default;
};

// Bytes since each port was set up, protocol headers included, from /sys/class/net and /sys/class/infiniband; sorted by
// port. `system` stands in front of these paths (for tests). Ports that cannot be read are left out; containers see
// only their own.
std::vector<PortBytes> network_counters(const std::string& system = "");

// What was counted in between, for the ports that were there both times.
std::vector<PortBytes> counted_between(const std::vector<PortBytes>& before, const std::vector<PortBytes>& after);

}  // namespace lamina
