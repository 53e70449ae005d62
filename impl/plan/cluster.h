// A cluster as the cost forms and the simulator see it: devices, links by tier, node size. Read from
// scenarios/clusters/*.json, where every constant stands beside its source.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lamina {

// A constant and where it comes from.
struct Quantity {
  double value = 0;
  std::string source;
};

// One point of a device's efficiency curve: the share of the peak rate that transformer layers of this hidden size
// reach, memory-bound work inside the layer included. It rises with the hidden size because matrix products grow with
// its square and everything else with its first power. Between points the share is linear in log(hidden); outside it
// is flat.
struct EfficiencyPoint {
  double hidden = 0;
  double share_of_peak = 1;
};

struct Device {
  std::string name;                                  // "a100-80gb"
  std::map<std::string, Quantity> peak_flops_per_s;  // by precision: "bf16", "fp16", "tf32", "fp32", "fp64"; dense
  Quantity memory_bytes;
  Quantity memory_bytes_per_s;
  std::vector<EfficiencyPoint> efficiency;  // ascending in hidden; empty reads as 1 everywhere
  std::string efficiency_source;
};

// A link as one device sees it, one direction at a time (both directions run at once).
struct Link {
  std::string name;               // "infiniband-hdr"
  Quantity bandwidth_bits_per_s;  // per device and direction
  Quantity latency_s;
  Quantity efficiency;                     // share of the bandwidth that large messages reach, in (0, 1]
  std::optional<Quantity> capacity_bytes;  // host and disk: what a device may store there
};

// Nominal bytes per second, and what large messages are expected to reach.
inline double nominal_bytes_per_s(const Link& link) { return link.bandwidth_bits_per_s.value / 8; }
inline double reached_bytes_per_s(const Link& link) { return nominal_bytes_per_s(link) * link.efficiency.value; }

struct Cluster {
  std::string name;
  std::string purpose;
  Device device;
  Quantity node_size;        // devices that share the node link; tensor groups stay inside a node
  Link node;                 // between devices of one node
  Link network;              // between nodes, per device
  std::optional<Link> host;  // to the host's memory
  std::optional<Link> disk;  // to local disks
};

// Share of the peak that layers of this hidden size reach on the device (see EfficiencyPoint).
inline double share_of_peak(const Device& device, double hidden) {
  const auto& points = device.efficiency;
  if (points.empty()) {
    return 1;
  }
  if (hidden <= points.front().hidden) {
    return points.front().share_of_peak;
  }
  for (std::size_t i = 1; i < points.size(); ++i) {
    const EfficiencyPoint& low = points[i - 1];
    const EfficiencyPoint& high = points[i];
    if (hidden <= high.hidden) {
      const double along = std::log(hidden / low.hidden) / std::log(high.hidden / low.hidden);
      return low.share_of_peak + along * (high.share_of_peak - low.share_of_peak);
    }
  }
  return points.back().share_of_peak;
}

}  // namespace lamina
