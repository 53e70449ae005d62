#include "impl/analysis/published.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "impl/analysis/cluster_file.h"
#include "impl/analysis/cost.h"
#include "impl/analysis/json_fields.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

// ---- Reading -------------------------------------------------------------------------------------------------------

bool stated(const Field& row, std::string_view key) {
  const auto found = row.value.find(std::string(key));
  return found != row.value.end() && !found->is_null();
}

std::string text_of(const Field& row, std::string_view key) {
  if (!stated(row, key)) {
    return "";
  }
  const Field words = child(row, key);
  if (!words.value.is_string()) {
    refuse(words.path, fmt::format("is {}; it must be a text or null", words.value.dump()));
  }
  return words.value.get<std::string>();
}

std::optional<std::int64_t> count_of(const Field& row, std::string_view key, std::int64_t least = 1) {
  constexpr std::int64_t kMost = 1'000'000'000'000;
  return stated(row, key) ? std::optional(whole_number(child(row, key), least, kMost)) : std::nullopt;
}

std::optional<double> amount_of(const Field& row, std::string_view key) {
  return stated(row, key) ? std::optional(number(child(row, key), {0, 1e15, true})) : std::nullopt;
}

std::optional<bool> flag_of(const Field& row, std::string_view key) {
  if (!stated(row, key)) {
    return std::nullopt;
  }
  const Field flag = child(row, key);
  if (!flag.value.is_boolean()) {
    refuse(flag.path, fmt::format("is {}; it must be true, false or null", flag.value.dump()));
  }
  return flag.value.get<bool>();
}

const std::vector<std::string_view>& row_keys() {
  static const std::vector<std::string_view> keys{"id",
                                                  "model",
                                                  "params_b",
                                                  "layers",
                                                  "hidden",
                                                  "heads",
                                                  "ffn",
                                                  "seq",
                                                  "vocab",
                                                  "tp",
                                                  "pp",
                                                  "dp",
                                                  "model_parallel",
                                                  "gpus",
                                                  "gpu",
                                                  "node_gpus",
                                                  "cluster",
                                                  "micro_batch",
                                                  "global_batch",
                                                  "recompute",
                                                  "interleave",
                                                  "schedule",
                                                  "zero",
                                                  "seq_parallel",
                                                  "precision",
                                                  "tflops_per_gpu",
                                                  "tflops_kind",
                                                  "mfu_pct",
                                                  "hfu_pct",
                                                  "iteration_s",
                                                  "iteration_s_kind",
                                                  "samples_per_s",
                                                  "memory_gib",
                                                  "memory_unit",
                                                  "source",
                                                  "seen_in",
                                                  "verified",
                                                  "note"};
  return keys;
}

PublishedRow row_from_json(const Field& row) {
  if (!row.value.is_object()) {
    refuse(row.path, "must be an object");
  }
  if (!stated(row, "id")) {
    refuse(row.path, "key 'id' is missing");
  }
  PublishedRow result;
  result.id = text(child(row, "id"));
  result.unknown_key = unknown_key(row, row_keys()).value_or("");
  result.model = text_of(row, "model");
  result.gpu = text_of(row, "gpu");
  result.cluster = text_of(row, "cluster");
  result.schedule = text_of(row, "schedule");
  result.recompute = text_of(row, "recompute");
  result.precision = text_of(row, "precision");
  result.iteration_kind = text_of(row, "iteration_s_kind");
  result.memory_unit = text_of(row, "memory_unit");
  result.source = text_of(row, "source");
  result.layers = count_of(row, "layers");
  result.hidden = count_of(row, "hidden");
  result.heads = count_of(row, "heads");
  result.ffn = count_of(row, "ffn");
  result.sequence = count_of(row, "seq");
  result.vocabulary = count_of(row, "vocab");
  result.tensor = count_of(row, "tp");
  result.pipeline = count_of(row, "pp");
  result.data = count_of(row, "dp");
  result.gpus = count_of(row, "gpus");
  result.node_gpus = count_of(row, "node_gpus");
  result.micro_batch = count_of(row, "micro_batch");
  result.global_batch = count_of(row, "global_batch");
  result.interleave = count_of(row, "interleave");
  result.zero_stage = count_of(row, "zero", 0);
  if (result.zero_stage.value_or(0) > 3) {
    refuse(child(row, "zero").path, fmt::format("is {}; it must be from 0 to 3", *result.zero_stage));
  }
  result.sequence_parallel = flag_of(row, "seq_parallel");
  result.iteration_s = amount_of(row, "iteration_s");
  result.samples_per_s = amount_of(row, "samples_per_s");
  result.memory = amount_of(row, "memory_gib");
  result.verified = flag_of(row, "verified");
  // Not used, but what stands there must be what the key says.
  for (const char* key : {"params_b", "tflops_per_gpu", "mfu_pct", "hfu_pct"}) {
    amount_of(row, key);
  }
  count_of(row, "model_parallel");
  for (const char* key : {"tflops_kind", "seen_in", "note"}) {
    text_of(row, key);
  }
  return result;
}

// ---- What a row says, read for the forms ---------------------------------------------------------------------------

// The reason why a row cannot be predicted.
struct NotPredicted {
  std::string reason;
};

std::int64_t needed(const std::optional<std::int64_t>& value, const char* key) {
  if (!value) {
    throw NotPredicted{fmt::format("'{}' is not stated", key)};
  }
  return *value;
}

ModelShape model_of(const PublishedRow& row) {
  const ModelShape model{.layers = needed(row.layers, "layers"),
                         .hidden = needed(row.hidden, "hidden"),
                         .heads = needed(row.heads, "heads"),
                         .sequence = needed(row.sequence, "seq"),
                         .vocabulary = needed(row.vocabulary, "vocab")};
  if (row.ffn && *row.ffn != 4 * model.hidden) {
    throw NotPredicted{fmt::format("the feed-forward size is {}, and the forms are for 4 times the hidden size, {}",
                                   *row.ffn, 4 * model.hidden)};
  }
  try {
    validate_for_forms(model);
  } catch (const UsageError& error) {
    throw NotPredicted{error.what()};
  }
  return model;
}

std::string lower(std::string_view words) {
  std::string result(words);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return result;
}

// The letters and digits of a name, in words: "NVIDIA A100-SXM4-40GB" has a100.
std::set<std::string> words_of(std::string_view name) {
  std::set<std::string> words;
  std::string word;
  for (const char letter : lower(name) + " ") {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      word += letter;
    } else {
      words.insert(std::exchange(word, ""));
    }
  }
  return words;
}

// The cluster that the row names, else of those with the row's chip the one with the fastest network: published
// trainings of many GPUs had a fast one unless they say otherwise. Its memory may be of another size: that of
// "a100-80gb" stands for 40 GB too.
const Cluster& cluster_of(const PublishedRow& row, const std::vector<Cluster>& clusters,
                          std::vector<std::string>& notes) {
  if (row.gpu.empty()) {
    throw NotPredicted{"'gpu' is not stated"};
  }
  const std::set<std::string> words = words_of(row.gpu);
  std::vector<const Cluster*> fitting;
  for (const Cluster& cluster : clusters) {
    const std::string device = lower(cluster.device.name);
    if (words.count(device.substr(0, device.find('-'))) > 0 && (row.cluster.empty() || row.cluster == cluster.name)) {
      fitting.push_back(&cluster);
    }
  }
  if (fitting.empty()) {
    const std::string named = row.cluster.empty() ? "" : fmt::format(" named '{}'", row.cluster);
    throw NotPredicted{fmt::format("no cluster file{} describes the GPU '{}'", named, row.gpu)};
  }
  const Cluster& fastest = **std::max_element(fitting.begin(), fitting.end(), [](const Cluster* a, const Cluster* b) {
    return nominal_bytes_per_s(a->network) < nominal_bytes_per_s(b->network);
  });
  if (fitting.size() > 1) {
    notes.push_back(
        fmt::format("cluster is not stated: read as {}, of the {} with this GPU the one with the fastest "
                    "network",
                    fastest.name, fitting.size()));
  }
  return fastest;
}

// The order by the names that papers use: the schedule's first word, with all its words where interleaving is told
// apart. One stage has no pipeline, and what counts is whether a layer takes one micro-batch at a time or all of them.
// Breadth-first with a layer a chunk is layered accumulation on one stage, the modular pipeline on several.
Order order_of(const PublishedRow& row, std::int64_t pipeline) {
  const std::string word = lower(row.schedule.substr(0, row.schedule.find(' ')));
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), word) != names.end();
  };
  const auto a_layer_a_chunk = [&](std::int64_t chunks) {
    if (chunks * pipeline != *row.layers) {
      throw NotPredicted{fmt::format("'interleave' is {}, and '{}' has a form for a layer a chunk", chunks, word)};
    }
  };
  if (pipeline == 1) {
    if (is({"", "none", "depth-first", "1f1b", "gpipe", "interleaved", "interleaved-1f1b"})) {
      return Order::depth_first;
    }
    if (is({"layered", "breadth-first"})) {
      if (row.interleave.value_or(1) > 1) {
        a_layer_a_chunk(*row.interleave);
      }
      return Order::layered;
    }
  } else if (is({"gpipe"})) {
    if (row.interleave.value_or(1) > 1) {
      throw NotPredicted{fmt::format("'interleave' is {}, and GPipe has one stage a rank", *row.interleave)};
    }
    return Order::gpipe;
  } else if (is({"1f1b", "interleaved", "interleaved-1f1b"})) {
    const bool says_so = words_of(row.schedule).count("interleaved") > 0;
    const std::int64_t chunks = says_so ? needed(row.interleave, "interleave") : row.interleave.value_or(1);
    return chunks > 1 ? Order::interleaved : Order::one_forward_one_backward;
  } else if (is({"breadth-first"})) {
    a_layer_a_chunk(needed(row.interleave, "interleave"));
    return Order::modular;
  } else if (is({"modular"})) {
    if (row.interleave.value_or(1) > 1) {
      a_layer_a_chunk(*row.interleave);
    }
    return Order::modular;
  }
  throw NotPredicted{row.schedule.empty() ? "'schedule' is not stated"
                                          : fmt::format("the schedule '{}' has no closed form here", row.schedule)};
}

Recompute recompute_of(const PublishedRow& row) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (row.recompute == name_of(recompute)) {
      return recompute;
    }
  }
  throw NotPredicted{row.recompute.empty() ? "'recompute' is not stated"
                                           : fmt::format("the recomputation '{}' is not known", row.recompute)};
}

StepPlan plan_of(const PublishedRow& row, std::vector<std::string>& notes) {
  StepPlan plan;
  plan.tensor = needed(row.tensor, "tp");
  plan.pipeline = needed(row.pipeline, "pp");
  plan.data = needed(row.data, "dp");
  plan.micro_batch = needed(row.micro_batch, "micro_batch");
  const std::int64_t batch = needed(row.global_batch, "global_batch");
  if (row.gpus && plan.devices() != *row.gpus) {
    throw NotPredicted{fmt::format("tp·pp·dp is {}, but the row has {} GPUs", plan.devices(), *row.gpus)};
  }
  if (batch % (plan.data * plan.micro_batch) != 0) {
    throw NotPredicted{fmt::format("the global batch {} is not a multiple of dp·micro_batch, {}", batch,
                                   plan.data * plan.micro_batch)};
  }
  plan.micro_batches = batch / (plan.data * plan.micro_batch);
  plan.order = order_of(row, plan.pipeline);
  plan.chunks = plan.pipeline == 1 ? 1 : row.interleave.value_or(1);
  if (!row.interleave && plan.order == Order::one_forward_one_backward) {
    notes.emplace_back("interleave is not stated: read as none");
  }
  plan.recompute = recompute_of(row);
  if (!row.sequence_parallel) {
    notes.emplace_back("seq_parallel is not stated: read as false");
  }
  plan.sequence_parallel = row.sequence_parallel.value_or(false);
  if (!row.zero_stage) {
    notes.emplace_back("zero is not stated: read as 0");
  }
  plan.zero_stage = static_cast<int>(row.zero_stage.value_or(0));
  if (is_pipeline(plan.order) && plan.order != Order::modular && plan.zero_stage == 2) {
    plan.keep_full_gradient = true;
    notes.emplace_back("ZeRO-2 in a pipeline: the full gradient is kept, reduced once a step");
  }
  if (plan.order == Order::interleaved && (plan.zero_stage == 1 || plan.zero_stage == 2) && plan.data > 1) {
    notes.emplace_back("ZeRO-1 in an interleaved pipeline: timed as an all-reduce, which moves the same bytes");
  }
  return plan;
}

// The plan whose form gives the layers' time: ZeRO-1 in an interleaved pipeline has none of its own.
StepPlan timed_plan(StepPlan plan) {
  if (plan.order == Order::interleaved && plan.zero_stage < 3) {
    plan.zero_stage = 0;
  }
  return plan;
}

// Rates of the links that the row's groups cross: a data-parallel group inside a node uses the node's link, and so do
// pipeline neighbours where all GPUs share one. Ranks are numbered tensor first, then data, then pipeline.
struct RowRates {
  Rates pipeline, data;
};

// GPUs in the row's node. Where none is stated, the cluster file's, unless a node of eight, the usual one, would hold
// other groups: the links that these cross then hang on it.
std::int64_t node_of(const PublishedRow& row, const StepPlan& plan, const Cluster& cluster,
                     std::vector<std::string>& notes) {
  if (row.node_gpus) {
    return *row.node_gpus;
  }
  constexpr std::int64_t kUsual = 8;
  const auto node = static_cast<std::int64_t>(cluster.node_size.value);
  for (const std::int64_t group : {plan.tensor, plan.tensor * plan.data, plan.devices()}) {
    if ((group <= node) != (group <= kUsual)) {
      throw NotPredicted{
          fmt::format("'node_gpus' is not stated, and a group of {} fits into a node of {} but not of {}", group,
                      std::max(node, kUsual), std::min(node, kUsual))};
    }
  }
  notes.push_back(fmt::format("node_gpus is not stated: read as {}, of {}", node, cluster.name));
  return node;
}

RowRates rates_for(const PublishedRow& row, const StepPlan& plan, const Cluster& cluster, LinkRates links,
                   std::vector<std::string>& notes) {
  const std::int64_t node = node_of(row, plan, cluster, notes);
  if (plan.tensor > node) {
    throw NotPredicted{
        fmt::format("the tensor group of {} leaves its node of {} GPUs: the forms keep it inside", plan.tensor, node)};
  }
  if (row.precision.empty()) {
    notes.emplace_back("precision is not stated: read as fp16");
  }
  const std::string precision = row.precision.empty() ? "fp16" : row.precision;
  RowRates rates;
  try {
    rates.pipeline = rates_of(cluster, precision, *row.hidden, RateKind::reached);
  } catch (const UsageError& error) {
    throw NotPredicted{error.what()};
  }
  if (links == LinkRates::nominal) {
    rates.pipeline.tensor_bytes_per_s = nominal_bytes_per_s(cluster.node);
    rates.pipeline.network_bytes_per_s = nominal_bytes_per_s(cluster.network);
  }
  rates.data = rates.pipeline;
  if (plan.tensor * plan.data <= node) {
    rates.data.network_bytes_per_s = rates.data.tensor_bytes_per_s;
  }
  if (plan.devices() <= node) {
    rates.pipeline.network_bytes_per_s = rates.pipeline.tensor_bytes_per_s;
  }
  return rates;
}

void check_stages(const StepPlan& plan, const ModelShape& model) {
  if (plan.pipeline > model.layers) {
    throw NotPredicted{fmt::format("{} layers on {} pipeline ranks", model.layers, plan.pipeline)};
  }
  if (plan.order == Order::interleaved && model.layers % (plan.pipeline * plan.chunks) != 0) {
    throw NotPredicted{fmt::format("{} layers do not make {} equal chunks on each of {} pipeline ranks", model.layers,
                                   plan.chunks, plan.pipeline)};
  }
}

double memory_of_row(const StepPlan& plan, const ModelShape& model) {
  WireBytes wire;
  wire.gradient = 4;  // accumulated in fp32 beside 16-bit weights, as the measured libraries do: 18 bytes a parameter
  // The vocabulary matrix is one more unit of parameters, split as the layers are.
  const double layers = layer_parameters(model) * stages_of(model.layers, plan.pipeline).layers_each;
  const MemoryBytes memory = memory_of(plan, model, wire);
  const double state = memory.parameters + memory.gradients + memory.optimizer;
  const double vocabulary = static_cast<double>(model.vocabulary) * static_cast<double>(model.hidden);
  return memory.total() + state * vocabulary / layers;
}

PublishedPrediction predicted(const PublishedRow& row, const std::vector<Cluster>& clusters, LinkRates links) {
  PublishedPrediction result;
  if (!row.unknown_key.empty()) {
    throw NotPredicted{row.unknown_key};
  }
  const ModelShape model = model_of(row);
  const Cluster& cluster = cluster_of(row, clusters, result.notes);
  result.cluster = cluster.name;
  result.plan = plan_of(row, result.notes);
  check_stages(result.plan, model);
  const RowRates rates = rates_for(row, result.plan, cluster, links, result.notes);
  const StepPlan timed = timed_plan(result.plan);
  const WireBytes wire;
  LayerTimes times = layer_times(model, timed, rates.pipeline, wire);
  set_data_times(times, model, static_cast<double>(timed.tensor), static_cast<double>(timed.data), rates.data, wire);
  const Stages stages = stages_of(model.layers, timed.pipeline);
  if (const auto reason = not_covered(timed, stages, times)) {
    throw NotPredicted{std::string(*reason)};
  }
  result.share_of_peak = rates.pipeline.share_of_peak;
  result.step = step_time(timed, stages, times);
  result.ends = end_times(result.plan, model, rates.data, wire, cluster.device.memory_bytes_per_s.value);
  result.total_s = result.step.total_s + result.ends.total_s();
  result.memory_bytes = memory_of_row(result.plan, model);
  if (!row.verified.value_or(true)) {
    result.notes.emplace_back("the row is marked as not verified");
  }
  if (row.memory && !row.measured_bytes()) {
    result.notes.push_back(fmt::format("memory in '{}' is not compared", row.memory_unit));
  }
  if (cluster.device.efficiency.empty()) {
    result.notes.push_back(fmt::format("{} has no efficiency curve: the nominal rate", cluster.device.name));
  }
  return result;
}

// A curve with two unknowns.
struct Line {
  double from = 0.5, to = 0.5;  // share of peak at kCurveFrom and kCurveTo
  std::vector<EfficiencyPoint> points() const { return {{kCurveFrom, from}, {kCurveTo, to}}; }
};

}  // namespace

std::optional<double> PublishedRow::measured_s() const {
  if (iteration_s) {
    return iteration_s;
  }
  if (samples_per_s && global_batch) {
    return static_cast<double>(*global_batch) / *samples_per_s;
  }
  return std::nullopt;
}

std::optional<double> PublishedRow::measured_bytes() const {
  constexpr double kGibibyte = 1024.0 * 1024 * 1024;
  const bool known = memory_unit.empty() || memory_unit == "GiB" || memory_unit == "GB";
  return memory && known ? std::optional(*memory * (memory_unit == "GB" ? 1e9 : kGibibyte)) : std::nullopt;
}

std::vector<PublishedRow> published_from_json(const Json& document, std::string_view where) {
  const Field root{document, std::string(where)};
  check_keys(root, {"rows"}, {"note"});
  const Field rows = child(root, "rows");
  if (!rows.value.is_array() || rows.value.empty()) {
    refuse(rows.path, "must be an array with at least one row");
  }
  std::vector<PublishedRow> result;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < rows.value.size(); ++i) {
    const Field row{rows.value[i], fmt::format("{}[{}]", rows.path, i)};
    result.push_back(row_from_json(row));
    if (!ids.insert(result.back().id).second) {
      refuse(row.path, fmt::format("id '{}' stands twice", result.back().id));
    }
  }
  return result;
}

std::vector<PublishedRow> read_published(const std::filesystem::path& file) {
  return published_from_json(read_strict_json(file.string()), file.string());
}

std::vector<Cluster> read_published_clusters(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".json") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Cluster> clusters;
  std::transform(files.begin(), files.end(), std::back_inserter(clusters), read_cluster);
  return clusters;
}

PublishedPrediction predict_published(const PublishedRow& row, const std::vector<Cluster>& clusters, LinkRates links) {
  try {
    return predicted(row, clusters, links);
  } catch (const NotPredicted& why) {
    PublishedPrediction result;
    result.reason = why.reason;
    return result;
  }
}

std::vector<double> log_ratios(const std::vector<PublishedRow>& rows, const std::vector<Cluster>& clusters) {
  std::vector<double> ratios;
  for (const PublishedRow& row : rows) {
    const PublishedPrediction prediction = predict_published(row, clusters);
    if (prediction.reason.empty() && row.measured_s()) {
      ratios.push_back(std::log(prediction.total_s / *row.measured_s()));
    }
  }
  return ratios;
}

std::vector<Cluster> with_efficiency(std::vector<Cluster> clusters, std::string_view device,
                                     const std::vector<EfficiencyPoint>& points) {
  for (Cluster& cluster : clusters) {
    if (cluster.device.name == device) {
      cluster.device.efficiency = points;
    }
  }
  return clusters;
}

std::optional<std::vector<EfficiencyPoint>> fitted_efficiency(const std::vector<PublishedRow>& rows,
                                                              const std::vector<Cluster>& clusters,
                                                              std::string_view device) {
  std::vector<Cluster> own;
  std::copy_if(clusters.begin(), clusters.end(), std::back_inserter(own),
               [&](const Cluster& cluster) { return cluster.device.name == device; });
  constexpr std::size_t kFewest = 3;
  if (log_ratios(rows, own).size() < kFewest) {
    return std::nullopt;
  }
  Line best;
  double least = std::numeric_limits<double>::infinity();
  constexpr int kHalf = 8;  // grid points to either side
  constexpr int kRounds = 12;
  double reach = 0.45;
  for (int round = 0; round < kRounds; ++round, reach /= 3) {
    const Line middle = best;
    for (int i = -kHalf; i <= kHalf; ++i) {
      for (int j = -kHalf; j <= kHalf; ++j) {
        const Line line{std::clamp(middle.from + reach * i / kHalf, 0.01, 1.0),
                        std::clamp(middle.to + reach * j / kHalf, 0.01, 1.0)};
        double squares = 0;
        for (const double ratio : log_ratios(rows, with_efficiency(own, device, line.points()))) {
          squares += ratio * ratio;
        }
        if (squares < least) {
          least = squares;
          best = line;
        }
      }
    }
  }
  return best.points();
}

}  // namespace lamina::analysis
