#include "impl/analysis/cluster_file.h"

#include <cmath>

#include "impl/analysis/json_fields.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

constexpr Range positive{0, 1e30, true};
constexpr Range share{0, 1, true};

Quantity quantity(const Field& node, Range range) {
  check_keys(node, {"value", "source"});
  return {number(child(node, "value"), range), text(child(node, "source"))};
}

Link link(const Field& node, bool stores) {
  if (stores) {
    check_keys(node, {"name", "bandwidth_bits_per_s", "latency_s", "efficiency", "capacity_bytes"});
  } else {
    check_keys(node, {"name", "bandwidth_bits_per_s", "latency_s", "efficiency"});
  }
  Link result{.name = text(child(node, "name")),
              .bandwidth_bits_per_s = quantity(child(node, "bandwidth_bits_per_s"), positive),
              .latency_s = quantity(child(node, "latency_s"), {0, 10}),
              .efficiency = quantity(child(node, "efficiency"), share),
              .capacity_bytes = std::nullopt};
  if (stores) {
    result.capacity_bytes = quantity(child(node, "capacity_bytes"), positive);
  }
  return result;
}

std::vector<EfficiencyPoint> efficiency_points(const Field& node) {
  if (!node.value.is_array()) {
    refuse(node.path, "must be an array of points");
  }
  std::vector<EfficiencyPoint> points;
  for (std::size_t i = 0; i < node.value.size(); ++i) {
    const Field at{node.value[i], fmt::format("{}[{}]", node.path, i)};
    check_keys(at, {"hidden", "share_of_peak"});
    points.push_back({number(child(at, "hidden"), positive), number(child(at, "share_of_peak"), share)});
    if (i > 0 && points[i].hidden <= points[i - 1].hidden) {
      refuse(at.path, "hidden must ascend from point to point");
    }
  }
  return points;
}

Device device(const Field& node) {
  check_keys(node, {"name", "peak_flops_per_s", "memory_bytes", "memory_bytes_per_s", "efficiency"});
  Device result;
  result.name = text(child(node, "name"));
  const Field peaks = child(node, "peak_flops_per_s");
  check_keys(peaks, {}, {"fp16", "bf16", "tf32", "fp32", "fp64"});
  if (peaks.value.empty()) {
    refuse(peaks.path, "is empty; it must hold the rate of at least one precision");
  }
  for (const auto& [precision, unused] : peaks.value.items()) {
    result.peak_flops_per_s[precision] = quantity(child(peaks, precision), positive);
  }
  result.memory_bytes = quantity(child(node, "memory_bytes"), positive);
  result.memory_bytes_per_s = quantity(child(node, "memory_bytes_per_s"), positive);
  const Field efficiency = child(node, "efficiency");
  check_keys(efficiency, {"points", "source"});
  result.efficiency = efficiency_points(child(efficiency, "points"));
  result.efficiency_source = text(child(efficiency, "source"));
  return result;
}

}  // namespace

Cluster cluster_from_json(const Json& document, std::string_view where) {
  const Field root{document, std::string(where)};
  check_keys(root, {"schema_version", "name", "purpose", "node_size", "device", "links"});
  const Field version = child(root, "schema_version");
  if (!version.value.is_number_integer() || version.value != 1) {
    refuse(version.path, fmt::format("is {}; this program reads version 1", version.value.dump()));
  }
  Cluster cluster;
  cluster.name = text(child(root, "name"));
  cluster.purpose = text(child(root, "purpose"));
  const Field node_size = child(root, "node_size");
  cluster.node_size = quantity(node_size, {1, 1e6});
  if (cluster.node_size.value != std::floor(cluster.node_size.value)) {
    refuse(node_size.path + ".value", fmt::format("is {}; it must be a whole number", cluster.node_size.value));
  }
  cluster.device = device(child(root, "device"));
  const Field links = child(root, "links");
  check_keys(links, {"node", "network"}, {"host", "disk"});
  cluster.node = link(child(links, "node"), false);
  cluster.network = link(child(links, "network"), false);
  if (links.value.contains("host")) {
    cluster.host = link(child(links, "host"), true);
  }
  if (links.value.contains("disk")) {
    cluster.disk = link(child(links, "disk"), true);
  }
  return cluster;
}

Cluster read_cluster(const std::filesystem::path& file) {
  return cluster_from_json(read_strict_json(file.string()), file.string());
}

PaperClusters read_paper_clusters(const std::filesystem::path& directory) {
  return {read_cluster(directory / "a100-80gb-infiniband.json"),
          read_cluster(directory / "a100-80gb-ethernet-25g.json")};
}

}  // namespace lamina::analysis
