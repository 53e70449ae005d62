#include "impl/analysis/cluster_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <set>

#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

using nlohmann::json;

// A JSON object together with its path, for errors.
struct Node {
  const json& value;
  std::string path;
};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw UsageError(fmt::format("{}: {}", path, what));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

// Refuses keys outside `required` and `optional` (with the nearest known name) and missing required ones.
void check_keys(const Node& node, std::initializer_list<std::string_view> required,
                std::initializer_list<std::string_view> optional = {}) {
  if (!node.value.is_object()) {
    refuse(node.path, "must be an object");
  }
  std::vector<std::string_view> known(required);
  known.insert(known.end(), optional.begin(), optional.end());
  for (const auto& [key, unused] : node.value.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const auto nearest = *std::min_element(
          known.begin(), known.end(), [&](auto a, auto b) { return edit_distance(a, key) < edit_distance(b, key); });
      refuse(node.path, fmt::format("unknown key '{}' (the nearest known is '{}')", key, nearest));
    }
  }
  for (const std::string_view key : required) {
    if (!node.value.contains(key)) {
      refuse(node.path, fmt::format("key '{}' is missing", key));
    }
  }
}

Node child(const Node& node, std::string_view key) {
  return {node.value.at(std::string(key)), fmt::format("{}.{}", node.path, key)};
}

std::string text(const Node& node) {
  if (!node.value.is_string() || node.value.get_ref<const std::string&>().empty()) {
    refuse(node.path, "must be a text that is not empty");
  }
  return node.value.get<std::string>();
}

struct Range {
  double least;
  double most;
  bool least_excluded = false;
};

double number(const Node& node, Range range) {
  const bool inside =
      node.value.is_number() && std::isfinite(node.value.get<double>()) &&
      (range.least_excluded ? node.value.get<double>() > range.least : node.value.get<double>() >= range.least) &&
      node.value.get<double>() <= range.most;
  if (!inside) {
    refuse(node.path, fmt::format("is {}; it must be a number {} {:g} and at most {:g}", node.value.dump(),
                                  range.least_excluded ? "above" : "of at least", range.least, range.most));
  }
  return node.value.get<double>();
}

constexpr Range positive{0, 1e30, true};
constexpr Range share{0, 1, true};

Quantity quantity(const Node& node, Range range) {
  check_keys(node, {"value", "source"});
  return {number(child(node, "value"), range), text(child(node, "source"))};
}

Link link(const Node& node, bool stores) {
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

std::vector<EfficiencyPoint> efficiency_points(const Node& node) {
  if (!node.value.is_array()) {
    refuse(node.path, "must be an array of points");
  }
  std::vector<EfficiencyPoint> points;
  for (std::size_t i = 0; i < node.value.size(); ++i) {
    const Node at{node.value[i], fmt::format("{}[{}]", node.path, i)};
    check_keys(at, {"hidden", "share_of_peak"});
    points.push_back({number(child(at, "hidden"), positive), number(child(at, "share_of_peak"), share)});
    if (i > 0 && points[i].hidden <= points[i - 1].hidden) {
      refuse(at.path, "hidden must ascend from point to point");
    }
  }
  return points;
}

Device device(const Node& node) {
  check_keys(node, {"name", "peak_flops_per_s", "memory_bytes", "memory_bytes_per_s", "efficiency"});
  Device result;
  result.name = text(child(node, "name"));
  const Node peaks = child(node, "peak_flops_per_s");
  check_keys(peaks, {}, {"fp16", "bf16", "tf32", "fp32", "fp64"});
  if (peaks.value.empty()) {
    refuse(peaks.path, "is empty; it must hold the rate of at least one precision");
  }
  for (const auto& [precision, unused] : peaks.value.items()) {
    result.peak_flops_per_s[precision] = quantity(child(peaks, precision), positive);
  }
  result.memory_bytes = quantity(child(node, "memory_bytes"), positive);
  result.memory_bytes_per_s = quantity(child(node, "memory_bytes_per_s"), positive);
  const Node efficiency = child(node, "efficiency");
  check_keys(efficiency, {"points", "source"});
  result.efficiency = efficiency_points(child(efficiency, "points"));
  result.efficiency_source = text(child(efficiency, "source"));
  return result;
}

}  // namespace

Cluster cluster_from_json(const json& document, std::string_view where) {
  const Node root{document, std::string(where)};
  check_keys(root, {"schema_version", "name", "purpose", "node_size", "device", "links"});
  const Node version = child(root, "schema_version");
  if (!version.value.is_number_integer() || version.value != 1) {
    refuse(version.path, fmt::format("is {}; this program reads version 1", version.value.dump()));
  }
  Cluster cluster;
  cluster.name = text(child(root, "name"));
  cluster.purpose = text(child(root, "purpose"));
  const Node node_size = child(root, "node_size");
  cluster.node_size = quantity(node_size, {1, 1e6});
  if (cluster.node_size.value != std::floor(cluster.node_size.value)) {
    refuse(node_size.path + ".value", fmt::format("is {}; it must be a whole number", cluster.node_size.value));
  }
  cluster.device = device(child(root, "device"));
  const Node links = child(root, "links");
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
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw UsageError(fmt::format("{}: cannot be opened", file.string()));
  }
  // nlohmann-json keeps the last of two equal keys without a word; the callback sees both.
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  json document;
  try {
    document = json::parse(stream, watch);
  } catch (const json::exception& error) {
    throw UsageError(fmt::format("{}: not valid JSON: {}", file.string(), error.what()));
  }
  if (!duplicate.empty()) {
    throw UsageError(fmt::format("{}: key '{}' stands twice in one object", file.string(), duplicate));
  }
  return cluster_from_json(document, file.string());
}

PaperClusters read_paper_clusters(const std::filesystem::path& directory) {
  return {read_cluster(directory / "a100-80gb-infiniband.json"),
          read_cluster(directory / "a100-80gb-ethernet-25g.json")};
}

}  // namespace lamina::analysis
