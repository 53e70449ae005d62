// Step times that others measured on real clusters (scenarios/published), and what the closed forms predict for them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "impl/analysis/ends.h"
#include "impl/analysis/forms.h"
#include "impl/base/strict_json.h"
#include "impl/plan/cluster.h"

namespace lamina::analysis {

// A row as its source states it, and the cluster file whose machine is meant. What is not stated is empty.
struct PublishedRow {
  std::string id, model, gpu, cluster, schedule, recompute, precision, iteration_kind, memory_unit, source;
  std::optional<std::int64_t> layers, hidden, heads, ffn, sequence, vocabulary;
  std::optional<std::int64_t> tensor, pipeline, data, gpus, node_gpus;
  std::optional<std::int64_t> micro_batch, global_batch, interleave, zero_stage;
  std::optional<bool> sequence_parallel, verified;
  std::optional<double> iteration_s, samples_per_s, memory;
  std::string unknown_key;  // a key that this program does not know: the row may mean what it cannot read

  std::optional<double> measured_s() const;      // iteration_s, else global_batch/samples_per_s
  std::optional<double> measured_bytes() const;  // memory in GiB (also where no unit is stated) or GB
};

// Strict: types and ranges checked, no id twice; null, an empty text and an absent key all mean "not stated". Throws
// UsageError with one line that names file, row and key. A row with an unknown key is read and never predicted, so that
// it costs the others nothing.
std::vector<PublishedRow> published_from_json(const Json& document, std::string_view where);
std::vector<PublishedRow> read_published(const std::filesystem::path& file);

// The clusters that rows are predicted on: every *.json in `directory`, in the order of their names. A row takes the
// one that its `cluster` names, else the first with its GPU.
std::vector<Cluster> read_published_clusters(const std::filesystem::path& directory);

enum class LinkRates : std::uint8_t { reached, nominal };

// A predicted step: step_time() of the layers at the cluster file's efficiencies, and the ends.
struct PublishedPrediction {
  std::string reason;              // why there is none; empty where there is one
  std::vector<std::string> notes;  // what was read into the row
  std::string cluster;
  StepPlan plan;
  double share_of_peak = 0;
  StepTime step;
  EndTimes ends;
  double total_s = 0;
  double memory_bytes = 0;  // the forms' memory of pipeline rank 0, and the state of one vocabulary matrix
};
PublishedPrediction predict_published(const PublishedRow& row, const std::vector<Cluster>& clusters,
                                      LinkRates links = LinkRates::reached);

// ln(predicted/measured) of each row that has both, in the order of the rows.
std::vector<double> log_ratios(const std::vector<PublishedRow>& rows, const std::vector<Cluster>& clusters);

// The efficiency curve of a device, a straight line in the logarithm of the hidden size given at two sizes, that makes
// the sum of squared log ratios of the rows on that device smallest. No fit from fewer than three such rows.
inline constexpr double kCurveFrom = 1024, kCurveTo = 32768;
std::optional<std::vector<EfficiencyPoint>> fitted_efficiency(const std::vector<PublishedRow>& rows,
                                                              const std::vector<Cluster>& clusters,
                                                              std::string_view device);
// The clusters with that device's curve replaced.
std::vector<Cluster> with_efficiency(std::vector<Cluster> clusters, std::string_view device,
                                     const std::vector<EfficiencyPoint>& points);

}  // namespace lamina::analysis
