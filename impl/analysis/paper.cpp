#include "impl/analysis/paper.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <system_error>
#include <unordered_map>

#include "impl/analysis/timeline.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

using nlohmann::ordered_json;

// ---- Settings and words shared by the figures ----------------------------------------------------------------------

struct NamedCluster {
  const char* key;    // in JSON
  const char* words;  // in sentences
  const Cluster* cluster;
};

std::vector<NamedCluster> clusters_of(const PaperOptions& options) {
  return {{"infiniband", "InfiniBand", &options.clusters.infiniband},
          {"ethernet", "25 Gb/s Ethernet", &options.clusters.ethernet}};
}

Setting setting_for(const PaperOptions& options, const Cluster& cluster, const ModelShape& model) {
  Setting setting;
  setting.model = model;
  setting.rates = rates_of(cluster, options.precision, model.hidden, options.rates);
  setting.critical_batch_tokens = critical_batch_tokens(options.batch_law, total_parameters(model));
  setting.step_rule = options.step_rule;
  return setting;
}

SearchOptions search_for(const PaperOptions& options, const Cluster& cluster, const ModelShape& model) {
  SearchOptions search_options;
  search_options.setting = setting_for(options, cluster, model);
  search_options.limits = {.devices = options.max_gpus,
                           .memory_bytes = cluster.device.memory_bytes.value,
                           .node_size = static_cast<std::int64_t>(cluster.node_size.value)};
  return search_options;
}

double days(double seconds) { return seconds / seconds_per_day; }

// 1234567 as "1,234,567".
std::string grouped(std::int64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string words;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      words.push_back(',');
    }
    words.push_back(digits[i]);
  }
  return words;
}

// Adds words to a list or a text, with a separator unless they are the first.
void append(std::string& text, std::string_view separator, std::string_view words) {
  if (!text.empty()) {
    text.append(separator);
  }
  text.append(words);
}

std::string device_words(const PaperOptions& options) {
  const Cluster& cluster = options.clusters.infiniband;
  return fmt::format("Device {}: {:.4g} TFLOP/s in {}, {:.4g} GB of memory; {} rates{}.", cluster.device.name,
                     cluster.device.peak_flops_per_s.at(options.precision).value / 1e12, options.precision,
                     cluster.device.memory_bytes.value / 1e9,
                     options.rates == RateKind::nominal ? "nominal" : "reached",
                     options.rates == RateKind::nominal ? " (data sheet, no efficiency applied)"
                                                        : " (times the cluster file's efficiencies)");
}

std::string link_words(const NamedCluster& named) {
  const Cluster& cluster = *named.cluster;
  return fmt::format("{}: {:.4g} GB/s per GPU and direction between nodes, {:.4g} GB/s inside a node of {:.0f}.",
                     named.words, nominal_bytes_per_s(cluster.network) / 1e9, nominal_bytes_per_s(cluster.node) / 1e9,
                     cluster.node_size.value);
}

std::string model_words(std::int64_t family) {
  const ModelShape model = family_model(family);
  return fmt::format(
      "Model X_{}: {} layers, hidden {}, {} heads, sequence {}; {:.4g} parameters in its layers "
      "(embedding and head left out).",
      family, model.layers, model.hidden, model.heads, model.sequence, total_parameters(model));
}

std::string batch_words(const PaperOptions& options) {
  const double tokens = critical_batch_tokens(options.batch_law, total_parameters(family_model(options.family)));
  return fmt::format("Batch law {}: critical batch {:.4g} tokens for X_{}; 100,000 steps at it; below it {}.",
                     name_of(options.batch_law), tokens, options.family,
                     options.step_rule == StepRule::same_tokens
                         ? "steps grow as B_c/B (same tokens: this project's cautious choice)"
                         : "steps grow as (1 + B_c/B)/2 (same loss: the scaling-law papers' rule)");
}

constexpr const char* forms_words =
    "Times are closed forms (no latency; biases, norms and the optimizer's time left out; full attention, full "
    "recomputation), bounds taken as values; 16-bit wire, 16 bytes of state a parameter, sequence parallelism inside "
    "the tensor group.";
constexpr const char* space_words =
    "Space: tensor degree 1 to 16 dividing the heads, pipeline degree dividing the layers, micro-batch 1 to 16 "
    "sequences, any data degree and number of micro-batches up to the critical batch, ZeRO 0 or 3 (interleaved: 0).";

ordered_json common_assumptions(const PaperOptions& options) {
  ordered_json list = ordered_json::array();
  list.push_back(model_words(options.family));
  list.push_back(batch_words(options));
  list.push_back(device_words(options));
  for (const NamedCluster& named : clusters_of(options)) {
    list.push_back(link_words(named));
  }
  list.push_back(forms_words);
  return list;
}

ordered_json figure_head(const char* name, const std::string& title, ordered_json assumptions) {
  return {{"schema_version", 1}, {"figure", name}, {"title", title}, {"assumptions", std::move(assumptions)}};
}

// Plan and cost as flat columns; all null when there is no plan.
void add_plan_columns(ordered_json& row, const std::optional<PlanCost>& cost) {
  const auto set = [&](const char* key, auto value_of) {
    row[key] = cost ? ordered_json(value_of(*cost)) : ordered_json(nullptr);
  };
  set("training_days", [](const PlanCost& c) { return days(c.training_s); });
  set("gpus", [](const PlanCost& c) { return c.plan.devices(); });
  set("method", [](const PlanCost& c) { return std::string(name_of(c.plan.order)); });
  set("zero_stage", [](const PlanCost& c) { return c.plan.zero_stage; });
  set("data", [](const PlanCost& c) { return c.plan.data; });
  set("pipeline", [](const PlanCost& c) { return c.plan.pipeline; });
  set("tensor", [](const PlanCost& c) { return c.plan.tensor; });
  set("micro_batch", [](const PlanCost& c) { return c.plan.micro_batch; });
  set("micro_batches", [](const PlanCost& c) { return c.plan.micro_batches; });
  set("chunks", [](const PlanCost& c) { return c.plan.chunks; });
  set("step_time_s", [](const PlanCost& c) { return c.step.total_s; });
  set("model_flops_utilisation", [](const PlanCost& c) { return c.model_utilisation; });
  set("hardware_flops_utilisation", [](const PlanCost& c) { return c.hardware_utilisation; });
  set("state_bytes", [](const PlanCost& c) { return c.memory.parameters + c.memory.gradients + c.memory.optimizer; });
  set("buffers_bytes", [](const PlanCost& c) { return c.memory.buffers; });
  set("checkpoints_bytes", [](const PlanCost& c) { return c.memory.checkpoints; });
  set("working_set_bytes", [](const PlanCost& c) { return c.memory.working_set; });
  set("memory_bytes", [](const PlanCost& c) { return c.memory.total(); });
}

std::optional<PlanCost> cost_at(const SearchResult& result, std::string_view track, std::int64_t gpus,
                                const Setting& setting) {
  const std::optional<Candidate> candidate = result.track(track).at_most(gpus);
  return candidate ? std::optional(cost_of(candidate->plan, setting)) : std::nullopt;
}

ordered_json plan_or_null(const std::optional<PlanCost>& cost) {
  return cost ? ordered_json(to_json(*cost)) : ordered_json(nullptr);
}

ordered_json days_or_null(const std::optional<PlanCost>& cost) {
  return cost ? ordered_json(days(cost->training_s)) : ordered_json(nullptr);
}

ordered_json ratio_or_null(const std::optional<PlanCost>& slow, const std::optional<PlanCost>& fast) {
  return slow && fast ? ordered_json(slow->training_s / fast->training_s) : ordered_json(nullptr);
}

// A ratio of times in words: "1.50 times faster than the baseline", "as fast as the baseline".
std::string faster_words(double ratio, std::string_view rival) {
  if (std::abs(ratio - 1) < 0.005) {
    return fmt::format("as fast as {}", rival);
  }
  return ratio > 1 ? fmt::format("{:.2f} times faster than {}", ratio, rival)
                   : fmt::format("{:.2f} times slower than {}", 1 / ratio, rival);
}

std::string parameters_words(double parameters) {
  return parameters < 1e12 ? fmt::format("{:.3g} billion parameters", parameters / 1e9)
                           : fmt::format("{:.3g} trillion parameters", parameters / 1e12);
}

}  // namespace

// ---- headline ------------------------------------------------------------------------------------------------------

Figure headline_figure(const PaperOptions& options) {
  Figure figure{.name = "headline", .data = {}, .rows = {}};
  ordered_json assumptions = common_assumptions(options);
  assumptions.push_back(space_words);
  assumptions.push_back(fmt::format("At most {} GPUs; the fastest plan of each strategy and variant is shown.",
                                    grouped(options.max_gpus)));
  figure.data = figure_head("headline", fmt::format("Shortest training of X_{} per strategy", options.family),
                            std::move(assumptions));
  std::string conclusion;
  ordered_json links;
  for (const NamedCluster& named : clusters_of(options)) {
    SearchOptions search_options = search_for(options, *named.cluster, family_model(options.family));
    search_options.tracks = strategy_tracks();
    search_options.keep_best = 0;
    const SearchResult result = search(search_options);
    ordered_json entries = ordered_json::array();
    for (const TrackResult& track : result.tracks) {
      const auto cost = cost_at(result, track.track.name, options.max_gpus, search_options.setting);
      const auto slash = track.track.name.find('/');
      ordered_json row{{"link", named.key},
                       {"strategy", track.track.name.substr(0, slash)},
                       {"variant", track.track.name.substr(slash + 1)}};
      ordered_json entry = row;
      entry["plan"] = plan_or_null(cost);
      entry["reason"] =
          cost ? ordered_json(nullptr)
               : ordered_json(fmt::format("no plan fits {:.0f} GB of device memory on at most {} GPUs",
                                          search_options.limits.memory_bytes / 1e9, grouped(options.max_gpus)));
      add_plan_columns(row, cost);
      figure.rows.push_back(row);
      entries.push_back(entry);
    }
    links[named.key] = entries;
    const auto of = [&](const char* variant) {
      return cost_at(result, fmt::format("data+pipeline+tensor/{}", variant), options.max_gpus, search_options.setting);
    };
    const auto improved = of("improved");
    if (improved) {
      std::string words =
          fmt::format("{}: the fastest improved plan trains in {:.2f} days on {} GPUs with {:.1f} GB each", named.words,
                      days(improved->training_s), grouped(improved->plan.devices()), improved->memory.total() / 1e9);
      for (const char* variant : {"baseline", "interleaved", "partitioned"}) {
        if (const auto rival = of(variant)) {
          words += fmt::format("; {} {:.2f} days on {} GPUs with {:.1f} GB", variant, days(rival->training_s),
                               grouped(rival->plan.devices()), rival->memory.total() / 1e9);
        }
      }
      append(conclusion, " ", words + ".");
    }
  }
  figure.data["conclusion"] = conclusion;
  figure.data["links"] = links;
  return figure;
}

// ---- frontier ------------------------------------------------------------------------------------------------------

namespace {

// Numbers of GPUs up to the most, which is the last of them.
std::vector<std::int64_t> frontier_gpus(std::int64_t most) {
  std::vector<std::int64_t> list{250,   500,   700,   1000,  1500,  2000,  3000,  5000,  7000,
                                 10000, 14000, 20000, 28000, 40000, 56000, 75000, 100000};
  std::erase_if(list, [&](std::int64_t gpus) { return gpus > most; });
  if (list.empty() || list.back() < std::min<std::int64_t>(most, 100'000)) {
    list.push_back(most);
  }
  return list;
}

// What a frontier says about where the proposed methods win and lose.
struct Verdict {
  double best_ratio = 0;
  std::int64_t best_at = 0;
  std::vector<std::int64_t> loses_at;
};

Verdict verdict_of(const ordered_json& entries, const char* key) {
  Verdict verdict;
  for (const ordered_json& entry : entries) {
    if (entry.at(key).is_null()) {
      continue;
    }
    const double ratio = entry.at(key).get<double>();
    const auto gpus = entry.at("gpus_at_most").get<std::int64_t>();
    if (ratio > verdict.best_ratio) {
      verdict.best_ratio = ratio;
      verdict.best_at = gpus;
    }
    if (ratio < 0.995) {
      verdict.loses_at.push_back(gpus);
    }
  }
  return verdict;
}

std::string losing_words(const Verdict& verdict, const char* rival) {
  if (verdict.loses_at.empty()) {
    return fmt::format("they never lose to {}", rival);
  }
  std::string list;
  for (const std::int64_t gpus : verdict.loses_at) {
    append(list, ", ", grouped(gpus));
  }
  return fmt::format("they lose to {} at {} GPUs", rival, list);
}

constexpr std::array<const char*, 3> families{"baseline", "baseline_interleaved", "improved"};

constexpr const char* confirmation_assumption =
    "simulated_days: the form's number of steps, each as long as the plan's schedule takes, built by the same passes "
    "as "
    "any that is run and put on a clock with the form's times of a layer; embedding, head and updates take none, links "
    "are not shared. A schedule too large to be verified, or to be simulated, says so in the plan's simulated.reason.";

// What the schedules of the entries' plans say about the forms.
std::string confirmation_words(const ordered_json& entries) {
  int plans = 0, simulated = 0, verified = 0, equal = 0;
  double farthest = 1;
  std::string where;
  for (const ordered_json& entry : entries) {
    for (const char* family : families) {
      const ordered_json& plan = entry.at(fmt::format("{}_plan", family));
      if (plan.is_null()) {
        continue;
      }
      ++plans;
      const ordered_json& confirmation = plan.at("simulated");
      verified += confirmation.at("verified").get<bool>() ? 1 : 0;
      if (confirmation.at("over_form").is_null()) {
        continue;
      }
      ++simulated;
      const double ratio = confirmation.at("over_form").get<double>();
      equal += std::abs(ratio - 1) < 1e-9 ? 1 : 0;
      if (std::abs(ratio - 1) > std::abs(farthest - 1)) {
        farthest = ratio;
        where = fmt::format("{} on {} GPUs", family, grouped(entry.at("gpus_at_most").get<std::int64_t>()));
      }
    }
  }
  std::string words = fmt::format("By their schedules: {} of the {} plans shown were simulated, ", simulated, plans);
  words += verified == simulated ? "all of them verified before"
                                 : fmt::format("{} of them not verified before, being too large", simulated - verified);
  words += fmt::format("; {} take what the form says", equal);
  if (!where.empty() && std::abs(farthest - 1) >= 1e-9) {
    words += fmt::format("; farthest from it is {}: {:+.2f} %", where, 100 * (farthest - 1));
  }
  return words + ".";
}

std::string frontier_conclusion(const char* link, const ordered_json& entries) {
  std::string words = fmt::format("{}: ", link);
  for (const ordered_json& entry : entries) {
    if (entry.at("gpus_at_most") == 40000 && !entry.at("ratio").is_null()) {
      words += fmt::format("on 40,000 GPUs the proposed methods need {:.2f} days, {} ({:.2f}) and {} ({:.2f}); ",
                           entry.at("improved_days").get<double>(),
                           faster_words(entry.at("ratio").get<double>(), "the baseline"),
                           entry.at("baseline_days").get<double>(),
                           faster_words(entry.at("ratio_interleaved").get<double>(), "the interleaved baseline"),
                           entry.at("baseline_interleaved_days").get<double>());
    }
  }
  const Verdict plain = verdict_of(entries, "ratio");
  const Verdict interleaved = verdict_of(entries, "ratio_interleaved");
  if (plain.best_at == 0) {
    return words + "no number of GPUs shown holds plans of all families.";
  }
  words += fmt::format(
      "the largest gain is {:.2f} times over the baseline (at {} GPUs) and {:.2f} times over the "
      "interleaved one (at {}); {} and {}.",
      plain.best_ratio, grouped(plain.best_at), interleaved.best_ratio, grouped(interleaved.best_at),
      losing_words(plain, "the baseline"), losing_words(interleaved, "the interleaved baseline"));
  return words;
}

// The same plan, timed by its schedule.
void add_confirmation(ordered_json& entry, const char* family, const std::optional<PlanCost>& cost,
                      const ModelShape& model, const Confirm& confirm) {
  ordered_json& days = entry[fmt::format("{}_simulated_days", family)];
  days = nullptr;
  if (cost) {
    ordered_json& simulated = entry[fmt::format("{}_plan", family)]["simulated"];
    simulated = to_json(confirm(*cost, model), *cost);
    days = simulated["training_days"];
  }
}

// The entries of one link, from one search.
ordered_json frontier_entries(const SearchResult& result, const SearchOptions& search_options,
                              const std::vector<std::int64_t>& gpu_counts, const Confirm& confirm) {
  ordered_json entries = ordered_json::array();
  for (const std::int64_t gpus : gpu_counts) {
    std::array<std::optional<PlanCost>, 3> costs;
    for (std::size_t i = 0; i < families.size(); ++i) {
      costs[i] = cost_at(result, families[i], gpus, search_options.setting);
    }
    ordered_json entry{{"gpus_at_most", gpus}};
    for (std::size_t i = 0; i < families.size(); ++i) {
      entry[fmt::format("{}_days", families[i])] = days_or_null(costs[i]);
    }
    entry["ratio"] = ratio_or_null(costs[0], costs[2]);
    entry["ratio_interleaved"] = ratio_or_null(costs[1], costs[2]);
    for (std::size_t i = 0; i < families.size(); ++i) {
      entry[fmt::format("{}_plan", families[i])] = plan_or_null(costs[i]);
      if (confirm) {
        add_confirmation(entry, families[i], costs[i], search_options.setting.model, confirm);
      }
    }
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

Figure frontier_figure(const PaperOptions& options) {
  Figure figure{.name = "frontier", .data = {}, .rows = {}};
  ordered_json assumptions = common_assumptions(options);
  assumptions.push_back(space_words);
  assumptions.push_back(
      "Families: baseline = depth-first, GPipe, 1F1B; baseline_interleaved = those and interleaved 1F1B; improved = "
      "layered, modular, hybrid. Each point is the fastest plan on at most so many GPUs; ratio = baseline time over "
      "improved time, above 1 where the proposed methods win.");
  if (options.confirm) {
    assumptions.push_back(confirmation_assumption);
  }
  figure.data =
      figure_head("frontier", fmt::format("Shortest training time of X_{} against number of GPUs", options.family),
                  std::move(assumptions));
  std::string conclusion;
  ordered_json links;
  ordered_json searches;
  for (const NamedCluster& named : clusters_of(options)) {
    const SearchOptions search_options = search_for(options, *named.cluster, family_model(options.family));
    const SearchResult result = search(search_options);
    const ordered_json entries =
        frontier_entries(result, search_options, frontier_gpus(options.max_gpus), options.confirm);
    for (const ordered_json& entry : entries) {
      for (const char* family : families) {
        ordered_json row{{"link", named.key}, {"gpus_at_most", entry.at("gpus_at_most")}, {"family", family}};
        add_plan_columns(row,
                         cost_at(result, family, entry.at("gpus_at_most").get<std::int64_t>(), search_options.setting));
        if (options.confirm) {
          const ordered_json& plan = entry.at(fmt::format("{}_plan", family));
          row["simulated_days"] = entry.at(fmt::format("{}_simulated_days", family));
          row["simulated_reason"] = plan.is_null() ? ordered_json(nullptr) : plan.at("simulated").at("reason");
        }
        row["ratio"] = entry.at("ratio");
        row["ratio_interleaved"] = entry.at("ratio_interleaved");
        figure.rows.push_back(row);
      }
    }
    append(conclusion, " ", frontier_conclusion(named.words, entries));
    if (options.confirm) {
      append(conclusion, " ", confirmation_words(entries));
    }
    links[named.key] = entries;
    ordered_json best;
    for (const TrackResult& track : result.tracks) {
      ordered_json list = ordered_json::array();
      for (const Candidate& candidate : track.best) {
        list.push_back(to_json(cost_of(candidate.plan, search_options.setting)));
      }
      best[track.track.name] = list;
    }
    searches[named.key] = {{"counts", to_json(result.counts)}, {"best_plans", best}};
  }
  figure.data["conclusion"] = conclusion;
  figure.data["links"] = links;
  figure.data["searches"] = searches;
  return figure;
}

// ---- model size ----------------------------------------------------------------------------------------------------

namespace {

// Members of the family from 7·10⁸ to 10¹⁴ parameters whose number of layers has many divisors.
const std::vector<std::int64_t>& family_sizes() {
  static const std::vector<std::int64_t> list{36, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 352, 384};
  return list;
}

}  // namespace

namespace {

// The variants of the model-size figure: those of the headline, and improved with checkpoints moved to the host.
constexpr const char* widest = "data+pipeline+tensor";
constexpr const char* offloaded_variant = "improved, checkpoints on host";

SearchResult model_size_search(SearchOptions search_options, const Cluster& cluster, bool offload, RateKind rates) {
  search_options.tracks = strategy_tracks();
  if (offload) {
    std::erase_if(search_options.tracks,
                  [](const Track& track) { return track.name != std::string(widest) + "/improved"; });
    search_options.tracks.at(0).name = std::string(widest) + "/" + offloaded_variant;
    search_options.setting.offload = {.checkpoints = Storage::host, .rates = storage_rates_of(cluster, rates)};
  }
  return search(search_options);
}

// The bytes that two gathered layers and two layers' gradients take in the widest tensor group: what ZeRO-3 cannot
// split any further.
double least_buffers(const SearchOptions& search_options) {
  StepPlan plan;
  plan.zero_stage = 3;
  for (const std::int64_t tensor : search_options.space.tensor) {
    if (search_options.setting.model.heads % tensor == 0 && tensor <= search_options.limits.node_size) {
      plan.tensor = std::max(plan.tensor, tensor);
    }
  }
  return memory_of(plan, search_options.setting.model, search_options.setting.wire).buffers;
}

// The largest size at which a variant has a plan.
struct Largest {
  double parameters = 0;
  std::optional<PlanCost> cost;
};

// How the fastest improved plans compare over the sizes, at unequal numbers of GPUs.
struct Comparison {
  int sizes = 0;
  int slower = 0;
  double worst = 1;  // time of the rival over time of the improved plan
  void add(const std::optional<PlanCost>& rival, const std::optional<PlanCost>& improved) {
    if (rival && improved) {
      const double ratio = rival->training_s / improved->training_s;
      ++sizes;
      slower += ratio < 0.995 ? 1 : 0;
      worst = std::min(worst, ratio);
    }
  }
  std::string words(const char* rival) const {
    if (slower == 0) {
      return fmt::format("never slower than {}", rival);
    }
    return fmt::format("slower than {} at {} of {} sizes, by up to {:.0f} %", rival, slower, sizes,
                       100 * (1 / worst - 1));
  }
};

std::string largest_words(const Largest& largest, const Cluster& cluster) {
  if (!largest.cost) {
    return "no size fits";
  }
  return fmt::format("up to {} fit ({:.1f} of {:.0f} GB a GPU, {:.3g} days on {} GPUs at that size)",
                     parameters_words(largest.parameters), largest.cost->memory.total() / 1e9,
                     cluster.device.memory_bytes.value / 1e9, days(largest.cost->training_s),
                     grouped(largest.cost->plan.devices()));
}

}  // namespace

Figure model_size_figure(const PaperOptions& options) {
  Figure figure{.name = "model-size", .data = {}, .rows = {}};
  constexpr std::int64_t most_gpus = 1'000'000;
  ordered_json assumptions = common_assumptions(options);
  assumptions[0] =
      "Models X_x: x layers, x heads of size x, hidden x², sequence 16 x, about 12 x⁵ parameters (embedding and head "
      "left out).";
  assumptions.push_back(space_words);
  assumptions.push_back(
      fmt::format("At most {} GPUs; the fastest plan of each strategy and variant at each size. '{}': layer "
                  "checkpoints move to the "
                  "host's memory through its link as they are made.",
                  grouped(most_gpus), offloaded_variant));
  figure.data = figure_head("model-size", "Training time, GPUs and memory against model size", std::move(assumptions));
  ordered_json links;
  std::string conclusion;
  for (const NamedCluster& named : clusters_of(options)) {
    ordered_json points = ordered_json::array();
    Largest on_device;
    Largest on_host;
    std::string beyond;
    Comparison against_baseline;
    Comparison against_interleaved;
    for (const std::int64_t x : family_sizes()) {
      SearchOptions search_options = search_for(options, *named.cluster, family_model(x));
      search_options.keep_best = 0;
      search_options.limits.devices = most_gpus;
      const double parameters = total_parameters(search_options.setting.model);
      for (const bool offload : {false, true}) {
        if (offload && !named.cluster->host) {
          continue;
        }
        const SearchResult result = model_size_search(search_options, *named.cluster, offload, options.rates);
        Setting setting = search_options.setting;
        if (offload) {
          setting.offload = {.checkpoints = Storage::host, .rates = storage_rates_of(*named.cluster, options.rates)};
        }
        if (!offload) {
          const auto of = [&](const char* variant) {
            return cost_at(result, fmt::format("{}/{}", widest, variant), most_gpus, setting);
          };
          against_baseline.add(of("baseline"), of("improved"));
          against_interleaved.add(of("interleaved"), of("improved"));
        }
        for (const TrackResult& track : result.tracks) {
          const auto cost = cost_at(result, track.track.name, most_gpus, setting);
          const auto slash = track.track.name.find('/');
          ordered_json row{{"link", named.key},
                           {"family", x},
                           {"parameters", parameters},
                           {"strategy", track.track.name.substr(0, slash)},
                           {"variant", track.track.name.substr(slash + 1)}};
          add_plan_columns(row, cost);
          row["host_bytes_per_s_needed"] = cost ? ordered_json(cost->offload.host_bytes_per_s) : ordered_json(nullptr);
          figure.rows.push_back(row);
          points.push_back(row);
          if (cost && track.track.name == std::string(widest) + "/improved") {
            on_device = {parameters, cost};
          } else if (cost && offload) {
            on_host = {parameters, cost};
          } else if (offload && beyond.empty()) {
            beyond = fmt::format(
                "at {} none does, because two layers' parameters and gradients alone take {:.0f} GB in the widest "
                "tensor group",
                parameters_words(parameters), least_buffers(search_options) / 1e9);
          }
        }
      }
    }
    links[named.key] = points;
    append(
        conclusion, " ",
        fmt::format("{}: with up to a million GPUs the fastest improved plan is {} and {}. Improved plans {}; with "
                    "checkpoints on the host {}; {}.",
                    named.words, against_baseline.words("the fastest baseline plan"),
                    against_interleaved.words("the fastest interleaved one"), largest_words(on_device, *named.cluster),
                    largest_words(on_host, *named.cluster), beyond.empty() ? "every size shown fits" : beyond));
  }
  figure.data["conclusion"] = conclusion;
  figure.data["links"] = links;
  return figure;
}

// ---- network -------------------------------------------------------------------------------------------------------

namespace {

// A method at a fixed split, for the figures that compare methods.
struct Specimen {
  std::string label;
  StepPlan plan;
};

// One stage on D × 16 GPUs and a pipeline of 20 ranks, both near the critical batch of X_160 with the gpt3 law. For
// other models the pipeline degree is the divisor of the layers nearest to 20 and the tensor degree the largest that
// divides the heads.
std::vector<Specimen> specimens(const Setting& setting) {
  const ModelShape& model = setting.model;
  std::int64_t tensor = 16;
  while (model.heads % tensor != 0) {
    tensor /= 2;
  }
  std::int64_t ranks = 1;
  for (std::int64_t i = 1; i <= model.layers; ++i) {
    if (model.layers % i == 0 && std::abs(i - 20) < std::abs(ranks - 20)) {
      ranks = i;
    }
  }
  const auto batch = static_cast<std::int64_t>(setting.critical_batch());
  const auto data_for = [&](std::int64_t micro_batches) { return std::max<std::int64_t>(1, batch / micro_batches); };
  const StepPlan one{.data = data_for(8), .tensor = tensor, .micro_batches = 8};
  const StepPlan many{.data = data_for(2 * ranks), .pipeline = ranks, .tensor = tensor, .micro_batches = 2 * ranks};
  const auto with = [](StepPlan plan, Order order, int stage, std::int64_t chunks) {
    plan.order = order;
    plan.zero_stage = stage;
    plan.chunks = chunks;
    return plan;
  };
  const std::int64_t chunks = model.layers / ranks;
  std::vector<Specimen> list{{"depth-first", with(one, Order::depth_first, 0, 1)},
                             {"depth-first, ZeRO-3", with(one, Order::depth_first, 3, 1)},
                             {"layered", with(one, Order::layered, 0, 1)},
                             {"layered, ZeRO-3", with(one, Order::layered, 3, 1)}};
  if (ranks > 1) {
    list.push_back({"GPipe", with(many, Order::gpipe, 0, 1)});
    list.push_back({"1F1B", with(many, Order::one_forward_one_backward, 0, 1)});
    list.push_back({"1F1B, ZeRO-3", with(many, Order::one_forward_one_backward, 3, 1)});
    if (chunks > 1) {
      list.push_back({fmt::format("interleaved, {} chunks", chunks), with(many, Order::interleaved, 0, chunks)});
    }
    list.push_back({"modular", with(many, Order::modular, 0, 1)});
    list.push_back({"modular, ZeRO-3", with(many, Order::modular, 3, 1)});
  }
  return list;
}

std::string split_words(const StepPlan& plan) {
  return fmt::format("data {} x pipeline {} x tensor {} = {} GPUs, {} micro-batches of {} sequence{}", plan.data,
                     plan.pipeline, plan.tensor, grouped(plan.devices()), plan.micro_batches, plan.micro_batch,
                     plan.micro_batch == 1 ? "" : "s");
}

// Step time with another bandwidth between nodes; nothing where no form covers it.
std::optional<double> step_at(const Specimen& specimen, Setting setting, double bits_per_s) {
  setting.rates.network_bytes_per_s = bits_per_s / 8;
  const LayerTimes times = layer_times(setting.model, specimen.plan, setting.rates, setting.wire);
  const Stages stages = stages_of(setting.model.layers, specimen.plan.pipeline);
  if (not_covered(specimen.plan, stages, times)) {
    return std::nullopt;
  }
  return step_time(specimen.plan, stages, times).total_s;
}

// The lowest bandwidth at which the step takes at most 5 % longer than on an infinite network, by bisection in its
// logarithm (the step time falls with bandwidth).
double bandwidth_that_suffices(const Specimen& specimen, const Setting& setting) {
  double low = 6;    // 1 Mb/s
  double high = 18;  // 10¹⁸ bit/s
  const double aim = 1.05 * step_at(specimen, setting, std::pow(10, high)).value();
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const auto step = step_at(specimen, setting, std::pow(10, middle));
    (step && *step <= aim ? high : low) = middle;
  }
  return std::pow(10, high);
}

}  // namespace

Figure network_figure(const PaperOptions& options) {
  Figure figure{.name = "network", .data = {}, .rows = {}};
  const Setting setting = setting_for(options, options.clusters.infiniband, family_model(options.family));
  const std::vector<Specimen> list = specimens(setting);
  ordered_json assumptions = common_assumptions(options);
  assumptions.push_back(fmt::format("One stage: {}.", split_words(list.front().plan)));
  assumptions.push_back(fmt::format("Pipelines: {}.", split_words(list.back().plan)));
  assumptions.push_back(
      "Threshold: the bandwidth between nodes at which a step takes 5 % longer than on an infinitely "
      "fast network. Whether a method fits the memory is not looked at here.");
  figure.data = figure_head("network", fmt::format("Step time of X_{} against bandwidth between nodes", options.family),
                            std::move(assumptions));
  ordered_json methods = ordered_json::array();
  std::unordered_map<std::string, double> thresholds;
  for (const Specimen& specimen : list) {
    const double threshold = bandwidth_that_suffices(specimen, setting);
    thresholds[specimen.label] = threshold;
    ordered_json points = ordered_json::array();
    for (double exponent = 9; exponent < 13.001; exponent += 0.1) {
      const double bits_per_s = std::pow(10, exponent);
      const auto step = step_at(specimen, setting, bits_per_s);
      const ordered_json value = step ? ordered_json(*step) : ordered_json(nullptr);
      points.push_back({{"bandwidth_bits_per_s", bits_per_s}, {"step_time_s", value}});
      figure.rows.push_back({{"method", specimen.label},
                             {"zero_stage", specimen.plan.zero_stage},
                             {"pipeline", specimen.plan.pipeline},
                             {"bandwidth_bits_per_s", bits_per_s},
                             {"step_time_s", value},
                             {"threshold_bits_per_s", threshold}});
    }
    ordered_json method{
        {"label", specimen.label}, {"plan", to_json(specimen.plan)}, {"threshold_bits_per_s", threshold}};
    if (!is_pipeline(specimen.plan.order)) {
      const auto tokens = static_cast<double>(specimen.plan.micro_batches / specimen.plan.group_count() *
                                              specimen.plan.micro_batch * setting.model.sequence);
      method["closed_form_threshold_bits_per_s"] =
          8 * bandwidth_to_hide_network(specimen.plan.zero_stage, specimen.plan.recompute,
                                        static_cast<double>(specimen.plan.data), setting.rates.flops_per_s, tokens,
                                        setting.wire);
    }
    method["points"] = points;
    methods.push_back(method);
  }
  std::string conclusion = fmt::format(
      "On one stage, layered accumulation needs {:.3g} Gb/s a GPU where depth-first needs {:.3g} ({:.1f} times less) "
      "without partition, and {:.3g} against {:.3g} ({:.1f} times less) with ZeRO-3.",
      thresholds["layered"] / 1e9, thresholds["depth-first"] / 1e9, thresholds["depth-first"] / thresholds["layered"],
      thresholds["layered, ZeRO-3"] / 1e9, thresholds["depth-first, ZeRO-3"] / 1e9,
      thresholds["depth-first, ZeRO-3"] / thresholds["layered, ZeRO-3"]);
  if (thresholds.contains("modular")) {
    conclusion += fmt::format(
        " In the pipeline, modular needs {:.3g} Gb/s and GPipe {:.3g} without partition; with ZeRO-3 modular needs "
        "{:.3g} and 1F1B {:.3g}.",
        thresholds["modular"] / 1e9, thresholds["GPipe"] / 1e9, thresholds["modular, ZeRO-3"] / 1e9,
        thresholds["1F1B, ZeRO-3"] / 1e9);
  }
  figure.data["conclusion"] = conclusion;
  figure.data["links"] = ordered_json::array();
  for (const NamedCluster& named : clusters_of(options)) {
    figure.data["links"].push_back(
        {{"name", named.words}, {"bandwidth_bits_per_s", named.cluster->network.bandwidth_bits_per_s.value}});
  }
  figure.data["methods"] = methods;
  return figure;
}

// ---- memory --------------------------------------------------------------------------------------------------------

Figure memory_figure(const PaperOptions& options) {
  Figure figure{.name = "memory", .data = {}, .rows = {}};
  const Setting setting = setting_for(options, options.clusters.infiniband, family_model(options.family));
  std::vector<Specimen> list = specimens(setting);
  ordered_json assumptions = common_assumptions(options);
  assumptions.push_back(fmt::format("One stage: {}.", split_words(list.front().plan)));
  assumptions.push_back(fmt::format("Pipelines: {}.", split_words(list.back().plan)));
  assumptions.push_back(
      "Pipeline rank 0, which holds most. The fastest improved plan on at most so many GPUs as the "
      "frontier ends with is shown last.");
  const SearchOptions search_options = search_for(options, options.clusters.infiniband, family_model(options.family));
  const SearchResult result = search(search_options);
  if (const auto winner = result.track("improved").at_most(options.max_gpus)) {
    list.push_back({"fastest improved plan", winner->plan});
  }
  figure.data =
      figure_head("memory", fmt::format("Memory per GPU of X_{} by kind", options.family), std::move(assumptions));
  const double limit = options.clusters.infiniband.device.memory_bytes.value;
  ordered_json methods = ordered_json::array();
  std::string over;
  for (const Specimen& specimen : list) {
    const MemoryBytes memory = memory_of(specimen.plan, setting.model, setting.wire);
    ordered_json row{{"label", specimen.label},
                     {"method", name_of(specimen.plan.order)},
                     {"zero_stage", specimen.plan.zero_stage},
                     {"data", specimen.plan.data},
                     {"pipeline", specimen.plan.pipeline},
                     {"tensor", specimen.plan.tensor},
                     {"micro_batches", specimen.plan.micro_batches},
                     {"parameters_bytes", memory.parameters},
                     {"gradients_bytes", memory.gradients},
                     {"optimizer_bytes", memory.optimizer},
                     {"buffers_bytes", memory.buffers},
                     {"checkpoints_bytes", memory.checkpoints},
                     {"working_set_bytes", memory.working_set},
                     {"total_bytes", memory.total()},
                     {"fits", memory.total() <= limit}};
    figure.rows.push_back(row);
    methods.push_back(row);
    if (memory.total() > limit) {
      append(over, "; ", fmt::format("{} ({:.0f} GB)", specimen.label, memory.total() / 1e9));
    }
  }
  figure.data["conclusion"] = fmt::format(
      "Without partition one stage holds the whole state of its tensor group. Over the {:.0f} GB of a GPU: {}. The {} "
      "takes "
      "{:.1f} GB, {:.0f} % of a GPU, {:.1f} GB of it checkpoints, the price of the layered order.",
      limit / 1e9, over.empty() ? "none" : over, list.back().label,
      methods.back().at("total_bytes").get<double>() / 1e9,
      100 * methods.back().at("total_bytes").get<double>() / limit,
      methods.back().at("checkpoints_bytes").get<double>() / 1e9);
  figure.data["device_memory_bytes"] = limit;
  figure.data["methods"] = methods;
  return figure;
}

// ---- batch law -----------------------------------------------------------------------------------------------------

Figure batch_law_figure(const PaperOptions& options) {
  Figure figure{.name = "batch-law", .data = {}, .rows = {}};
  const ModelShape model = family_model(options.family);
  ordered_json assumptions = common_assumptions(options);
  assumptions[1] =
      "Batch laws: gpt3 = 3.2·10⁶ tokens·(p/1.75·10¹¹)^(1/3) (arXiv 2005.14165 and this project's "
      "exponent); kaplan = 2·10⁸ tokens/L^(1/0.21), L = (8.8·10¹³/p)^0.076 (arXiv 2001.08361). 100,000 "
      "steps at the critical batch.";
  assumptions.push_back(
      "Rules below the critical batch: same_tokens = B_c/B times the steps; same_loss = (1 + B_c/B)/2 "
      "times.");
  assumptions.push_back(space_words);
  figure.data = figure_head("batch-law", fmt::format("What the batch law does to the claims, X_{}", options.family),
                            std::move(assumptions));
  ordered_json curves = ordered_json::array();
  for (const BatchLaw law : {BatchLaw::gpt3, BatchLaw::kaplan}) {
    for (double exponent = 9; exponent < 14.001; exponent += 0.25) {
      const double parameters = std::pow(10, exponent);
      curves.push_back({{"law", name_of(law)},
                        {"parameters", parameters},
                        {"critical_batch_tokens", critical_batch_tokens(law, parameters)}});
    }
  }
  ordered_json cases = ordered_json::array();
  std::string conclusion;
  for (const BatchLaw law : {BatchLaw::gpt3, BatchLaw::kaplan}) {
    for (const StepRule rule : {StepRule::same_tokens, StepRule::same_loss}) {
      PaperOptions varied = options;
      varied.batch_law = law;
      varied.step_rule = rule;
      std::array<double, 2> improved_days{};
      std::array<ordered_json, 2> at_40k;
      std::size_t link = 0;
      for (const NamedCluster& named : clusters_of(varied)) {
        SearchOptions search_options = search_for(varied, *named.cluster, model);
        search_options.keep_best = 0;
        const SearchResult result = search(search_options);
        const ordered_json entries = frontier_entries(result, search_options, frontier_gpus(varied.max_gpus), {});
        const Verdict plain = verdict_of(entries, "ratio");
        const Verdict interleaved = verdict_of(entries, "ratio_interleaved");
        const std::int64_t shown = std::min<std::int64_t>(40'000, varied.max_gpus);
        const ordered_json entry = frontier_entries(result, search_options, {shown}, {}).at(0);
        const auto improved = cost_at(result, "improved", shown, search_options.setting);
        improved_days[link] = improved ? days(improved->training_s) : 0;
        at_40k[link++] = entry;
        ordered_json row{
            {"law", name_of(law)},
            {"rule", name_of(rule)},
            {"link", named.key},
            {"critical_batch_tokens", search_options.setting.critical_batch_tokens},
            {"gpus_at_most", shown},
            {"baseline_days", entry.at("baseline_days")},
            {"baseline_interleaved_days", entry.at("baseline_interleaved_days")},
            {"improved_days", entry.at("improved_days")},
            {"ratio", entry.at("ratio")},
            {"ratio_interleaved", entry.at("ratio_interleaved")},
            {"largest_ratio", plain.best_ratio},
            {"largest_ratio_gpus", plain.best_at},
            {"largest_ratio_interleaved", interleaved.best_ratio},
            {"largest_ratio_interleaved_gpus", interleaved.best_at},
            {"improved_memory_bytes", improved ? ordered_json(improved->memory.total()) : ordered_json(nullptr)}};
        figure.rows.push_back(row);
        cases.push_back(row);
      }
      if (!at_40k[0].at("ratio").is_null() && !at_40k[1].at("ratio").is_null()) {
        append(conclusion, " ",
               fmt::format(
                   "{} with {}: the gain on {} GPUs is {:.2f} over the baseline and {:.2f} over the interleaved one on "
                   "InfiniBand, {:.2f} and {:.2f} on Ethernet, and Ethernet costs the proposed methods {:.0f} % more "
                   "time.",
                   name_of(law), name_of(rule), grouped(at_40k[0].at("gpus_at_most").get<std::int64_t>()),
                   at_40k[0].at("ratio").get<double>(), at_40k[0].at("ratio_interleaved").get<double>(),
                   at_40k[1].at("ratio").get<double>(), at_40k[1].at("ratio_interleaved").get<double>(),
                   100 * (improved_days[1] / improved_days[0] - 1)));
      }
    }
  }
  figure.data["conclusion"] = conclusion;
  figure.data["curves"] = curves;
  figure.data["cases"] = cases;
  return figure;
}

// ---- timeline ------------------------------------------------------------------------------------------------------

Figure timeline_figure(const PaperOptions&) {
  Figure figure{.name = "timeline", .data = {}, .rows = {}};
  LayerTimes times;
  times.forward_s = 1;
  times.backward_s = 3;
  times.gather_s = 2.5;
  times.reduce_s = 2.5;
  times.all_reduce_s = 5;
  times.boundary_s = 0.25;
  struct Panel {
    const char* group;
    const char* label;
    StepPlan plan;
    std::int64_t layers;
  };
  const std::int64_t one_stage_layers = 4;
  const std::int64_t pipeline_layers = 8;
  const auto one_stage = [](Order order, int stage) {
    return StepPlan{.order = order, .data = 2, .micro_batches = 4, .zero_stage = stage};
  };
  const auto pipeline = [](Order order) { return StepPlan{.order = order, .pipeline = 4, .micro_batches = 6}; };
  const std::vector<Panel> panels{
      {"without partition", "depth-first", one_stage(Order::depth_first, 0), one_stage_layers},
      {"without partition", "layered", one_stage(Order::layered, 0), one_stage_layers},
      {"ZeRO-3", "depth-first", one_stage(Order::depth_first, 3), one_stage_layers},
      {"ZeRO-3", "layered", one_stage(Order::layered, 3), one_stage_layers},
      {"pipeline", "GPipe", pipeline(Order::gpipe), pipeline_layers},
      {"pipeline", "modular", pipeline(Order::modular), pipeline_layers}};
  figure.data = figure_head(
      "timeline", "When each operation runs",
      {"Made-up times in units of one layer's forward pass of one micro-batch: backward with recomputation 3, gather "
       "2.5, reduce-scatter 2.5, all-reduce 5, boundary transfer 0.25.",
       "One stage: 4 layers, 4 micro-batches, two parameter and two gradient slots, resident layers reused. Pipeline: "
       "8 "
       "layers on 4 ranks, 6 micro-batches, no data parallelism.",
       "Operations run in their stream's order as soon as what they wait for is done; nothing else is modelled."});
  ordered_json list = ordered_json::array();
  std::vector<double> ends;
  for (const Panel& panel : panels) {
    std::vector<TimelineOp> ops = is_pipeline(panel.plan.order) ? pipeline_timeline(panel.plan, panel.layers, times)
                                                                : one_stage_timeline(panel.plan, panel.layers, times);
    ends.push_back(run_timeline(ops));
    ordered_json events = ordered_json::array();
    for (const TimelineOp& op : ops) {
      ordered_json row{{"panel", panel.group},          {"method", panel.label},    {"rank", op.rank},
                       {"lane", name_of(op.lane)},      {"work", name_of(op.work)}, {"layer", op.layer},
                       {"micro_batch", op.micro_batch}, {"start", op.start_s},      {"end", op.end_s}};
      figure.rows.push_back(row);
      events.push_back(row);
    }
    list.push_back({{"panel", panel.group}, {"method", panel.label}, {"end", ends.back()}, {"events", events}});
  }
  figure.data["conclusion"] = fmt::format(
      "In this small example layered takes {:.1f} units, {} ({:.1f}) without partition; with ZeRO-3 {:.1f}, {} "
      "({:.1f}); the modular pipeline takes {:.1f}, {} ({:.1f}).",
      ends[1], faster_words(ends[0] / ends[1], "depth-first"), ends[0], ends[3],
      faster_words(ends[2] / ends[3], "depth-first"), ends[2], ends[5], faster_words(ends[4] / ends[5], "GPipe"),
      ends[4]);
  figure.data["panels"] = list;
  return figure;
}

// ---- Names and files -----------------------------------------------------------------------------------------------

namespace {

struct FigureEntry {
  const char* name;
  Figure (*make)(const PaperOptions&);
};

constexpr std::array<FigureEntry, 8> figure_table{{{"timeline", timeline_figure},
                                                   {"headline", headline_figure},
                                                   {"frontier", frontier_figure},
                                                   {"model-size", model_size_figure},
                                                   {"network", network_figure},
                                                   {"memory", memory_figure},
                                                   {"batch-law", batch_law_figure},
                                                   {"published", published_figure}}};

std::string csv_cell(const ordered_json& value) {
  if (value.is_null()) {
    return "";
  }
  if (!value.is_string()) {
    return value.dump();
  }
  const auto& words = value.get_ref<const std::string&>();
  if (words.find_first_of(",\"\n") == std::string::npos) {
    return words;
  }
  std::string quoted = "\"";
  for (const char letter : words) {
    quoted.append(letter == '"' ? 2 : 1, letter);
  }
  quoted.push_back('"');
  return quoted;
}

// Writes beside and renames, so that a file is whole or absent.
void write_file(const std::filesystem::path& file, const std::string& content) {
  const std::filesystem::path aside = file.string() + ".partial";
  std::ofstream stream(aside, std::ios::binary | std::ios::trunc);
  stream << content;
  stream.close();
  std::error_code error;
  if (stream) {
    std::filesystem::rename(aside, file, error);
  }
  if (!stream || error) {
    throw UsageError(fmt::format("{}: cannot be written", file.string()));
  }
}

}  // namespace

std::string to_csv(const std::vector<ordered_json>& rows) {
  if (rows.empty()) {
    return "";
  }
  const auto line = [](const ordered_json& row, auto cell) {
    std::string words;
    for (const auto& [key, value] : row.items()) {
      words += cell(key, value);
      words.push_back(',');
    }
    words.back() = '\n';
    return words;
  };
  std::string csv = line(rows.front(), [](const std::string& key, const ordered_json&) { return key; });
  for (const ordered_json& row : rows) {
    LAMINA_CHECK(row.size() == rows.front().size(), "a row of {} cells under {} columns", row.size(),
                 rows.front().size());
    csv += line(row, [](const std::string&, const ordered_json& value) { return csv_cell(value); });
  }
  return csv;
}

const std::vector<std::string>& paper_figure_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const FigureEntry& entry : figure_table) {
      list.emplace_back(entry.name);
    }
    return list;
  }();
  return names;
}

Figure paper_figure(std::string_view name, const PaperOptions& options) {
  for (const FigureEntry& entry : figure_table) {
    if (name == entry.name) {
      return entry.make(options);
    }
  }
  throw UsageError(fmt::format("figure '{}' is not known; there are {}", name, fmt::join(paper_figure_names(), ", ")));
}

std::string paper_command(std::string_view name, const std::filesystem::path& directory, const PaperOptions& options,
                          const std::function<void(std::string_view)>& report) {
  const std::vector<std::string> names =
      name.empty() ? paper_figure_names() : std::vector<std::string>{std::string(name)};
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw UsageError(fmt::format("{}: cannot be made: {}", directory.string(), error.message()));
  }
  std::string text;
  for (const std::string& each : names) {
    if (report) {
      report(each);
    }
    const Figure figure = paper_figure(each, options);
    write_file(directory / (each + ".json"), figure.data.dump(1) + "\n");
    write_file(directory / (each + ".csv"), to_csv(figure.rows));
    text += fmt::format("# {}: {}\n{}\n", each, figure.data.at("title").get<std::string>(),
                        figure.data.at("conclusion").get<std::string>());
  }
  return text;
}

}  // namespace lamina::analysis
