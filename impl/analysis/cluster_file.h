// Reads a cluster file (scenarios/clusters/*.json).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "impl/base/strict_json.h"
#include "impl/plan/cluster.h"

namespace lamina::analysis {

// Strict: every key known at every depth, every required key present, every constant an object of `value` and
// `source`, every number finite and in its range. `where` names the file in errors. Throws UsageError with one line
// that names the key and what would be accepted.
Cluster cluster_from_json(const Json& document, std::string_view where);

// Reads and checks the file.
Cluster read_cluster(const std::filesystem::path& file);

// The clusters that the paper's figures use, found in `directory` (scenarios/clusters).
struct PaperClusters {
  Cluster infiniband;
  Cluster ethernet;
};
PaperClusters read_paper_clusters(const std::filesystem::path& directory);

}  // namespace lamina::analysis
