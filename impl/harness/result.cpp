#include "impl/harness/result.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "impl/base/error.h"
#include "impl/harness/closed_form.h"
#include "impl/harness/context.h"
#include "impl/harness/statistics.h"

namespace lamina {
namespace {

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) {
    list.push_back(finite_or_null(value));
  }
  return list;
}

std::int64_t traffic_of(const StepTraffic& traffic, TrafficKind kind, UnitKind unit) {
  return traffic.bytes[static_cast<std::size_t>(kind)][static_cast<std::size_t>(unit)];
}

std::int64_t traffic_of(const StepTraffic& traffic, TrafficKind kind) {
  return traffic_of(traffic, kind, UnitKind::embedding) + traffic_of(traffic, kind, UnitKind::layer) +
         traffic_of(traffic, kind, UnitKind::head);
}

Json unit_traffic(const UnitTraffic& traffic) { return {{"reduce", traffic.reduce}, {"gather", traffic.gather}}; }

// Data-parallel bytes, whole and by what they belong to. Embedding and head are not layers.
Json data_traffic(const UnitTraffic& embedding, const UnitTraffic& layers, const UnitTraffic& head) {
  return {{"reduce", embedding.reduce + layers.reduce + head.reduce},
          {"gather", embedding.gather + layers.gather + head.gather},
          {"units",
           {{"embedding", unit_traffic(embedding)}, {"layers", unit_traffic(layers)}, {"head", unit_traffic(head)}}}};
}

Json sampled_metric(const char* direction, const std::vector<double>& samples) {
  Json metric;
  metric["direction"] = direction;
  metric["samples"] = numbers(samples);
  const bool finite = std::all_of(samples.begin(), samples.end(), [](double value) { return std::isfinite(value); });
  if (!finite) {
    metric["median"] = metric["low"] = metric["high"] = nullptr;
    metric["reason"] = "a sample is not finite";
    return metric;
  }
  const Summary summary = summarize(samples);
  metric["median"] = summary.median;
  metric["low"] = summary.low;
  metric["high"] = summary.high;
  metric["spread"] = std::string(name_of(summary.spread));
  return metric;
}

Json slow_rank_as_json(const std::optional<SlowRank>& slow) {
  if (!slow) {
    return nullptr;
  }
  return {{"rank", slow->rank}, {"busy_s", slow->busy_s}, {"others_busy_s", slow->others_busy_s}};
}

// A value of every step, warm-up included.
void add_series(Json& metrics, const char* name, const TrainOutcome& outcome, double StepRecord::*value) {
  std::vector<double> values;
  for (const StepRecord& step : outcome.steps) {
    values.push_back(step.*value);
  }
  metrics[name] = numbers(values);
  if (!std::all_of(values.begin(), values.end(), [](double one) { return std::isfinite(one); })) {
    metrics[std::string(name) + "_reason"] = "null where it was not finite: training diverged";
  }
}

// A step of which no target is counted has no mean over targets.
void add_loss(Json& metrics, const TrainOutcome& outcome) {
  add_series(metrics, "loss", outcome, &StepRecord::loss);
  const auto uncounted = [](const StepRecord& step) { return step.counted_targets == 0; };
  if (std::any_of(outcome.steps.begin(), outcome.steps.end(), uncounted)) {
    const bool diverged = std::any_of(outcome.steps.begin(), outcome.steps.end(), [&](const StepRecord& step) {
      return !uncounted(step) && !std::isfinite(step.loss);
    });
    metrics["loss_reason"] =
        fmt::format("null where no target is counted{}", diverged ? " or it was not finite: training diverged" : "");
  }
}

// Steps that updated nothing, and the loss scale of every step, warm-up included.
void add_loss_scale(Json& metrics, const Precision& precision, const TrainOutcome& outcome, std::size_t warmup) {
  const auto skipped = [](std::span<const StepRecord> steps) {
    return std::count_if(steps.begin(), steps.end(), [](const StepRecord& step) { return step.skipped; });
  };
  const std::span<const StepRecord> steps(outcome.steps);
  metrics["skipped_steps"] = {{"warmup", skipped(steps.first(warmup))}, {"measured", skipped(steps.subspan(warmup))}};
  if (precision.scales_loss()) {
    add_series(metrics, "loss_scale", outcome, &StepRecord::loss_scale);
  } else {
    metrics["loss_scale"] = nullptr;
    metrics["loss_scale_reason"] = fmt::format("the loss is not scaled in {}", name_of(precision.compute));
  }
}

Json memory_as_json(const RankMemory& memory) {
  return {{"parameters", memory.parameters},   {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},     {"checkpoints", memory.checkpoints},
          {"working_set", memory.working_set}, {"gathered", memory.gathered},
          {"transport", memory.transport},     {"total", memory.total()}};
}

// What interfaces counted, protocol headers and everybody else's bytes included, during all steps. Ranks that share a
// host see the same ports.
void add_wire(Json& metric, const Placement& placement, const TrainOutcome& outcome) {
  metric["wire"] = nullptr;
  if (outcome.rank_wire.empty()) {
    metric["wire_reason"] = "ranks are threads of one process: no interface counts their bytes";
    return;
  }
  const auto none = [](const auto& ports) { return ports.empty(); };
  if (std::all_of(outcome.rank_wire.begin(), outcome.rank_wire.end(), none)) {
    metric["wire_reason"] = "this system shows no counters of network interfaces";
    return;
  }
  Json& wire = metric["wire"] = {{"steps", outcome.steps.size()}, {"per_rank", Json::array()}};
  for (std::size_t rank = 0; rank < outcome.rank_wire.size(); ++rank) {
    Json ports = Json::array();
    for (const PortBytes& port : outcome.rank_wire[rank]) {
      if (port.sent != 0 || port.received != 0) {
        ports.push_back({{"port", port.port}, {"sent", port.sent}, {"received", port.received}});
      }
    }
    wire["per_rank"].push_back(
        {{"rank", rank}, {"host", placement.of(static_cast<std::int64_t>(rank)).host}, {"ports", ports}});
  }
}

Json traffic_metric(const PreparedRun& run, CollectiveBackend collectives, std::span<const StepRecord> measured) {
  Json metric;
  metric["direction"] = "lower";
  // "algorithm": of data, what a ring would send. What a library sends is not known.
  metric["counted"] = collectives == CollectiveBackend::ring ? "sent" : "algorithm";
  metric["per_rank"] = Json::array();
  for (const StepTraffic& traffic : measured.front().rank_traffic) {
    metric["per_rank"].push_back(traffic_as_json(traffic));
  }
  metric["same_every_step"] = std::all_of(measured.begin(), measured.end(), [&](const StepRecord& step) {
    return step.rank_traffic == measured.front().rank_traffic;
  });
  metric["predicted"] = prediction_of_traffic(run);
  if (metric["predicted"].is_null()) {
    metric["predicted_reason"] = run.prediction.reason;
  }
  return metric;
}

Json memory_metric(const PreparedRun& run, const TrainOutcome& outcome) {
  Json metric;
  metric["direction"] = "lower";
  metric["per_rank"] = Json::array();
  for (const RankMemory& memory : outcome.rank_memory) {
    metric["per_rank"].push_back(memory_as_json(memory));
  }
  metric["predicted"] = prediction_of_memory(run);
  metric["predicted_reason"] =
      metric["predicted"].is_null()
          ? run.prediction.reason
          : "working set and transport are counted, not predicted; beyond the prediction a pipeline rank holds the "
            "activations on their way, below it the last data-parallel rank may stay by its padding";
  metric["resident_set"] = outcome.resident_set_growth_bytes;  // by process; threads are all of one
  return metric;
}

// What the forms say of the measured step, and how far the step is from it.
void add_closed_form(Json& metrics, const PreparedRun& run, const Precision& precision, const ResolvedLink& link,
                     const Measurement& measurement, const TrainOutcome& outcome, std::int64_t warmup_steps) {
  const ClosedForm form = closed_form_of(run.schedule, precision, link.link, measurement, outcome.trace, warmup_steps);
  Json& value = metrics["closed_form_step_time_s"];
  Json& ratio = metrics["step_time_over_closed_form"];
  ratio["direction"] = value["direction"] = "lower";
  value["median"] = ratio["median"] = nullptr;
  if (form.step_time_s) {
    value["median"] = finite_or_null(*form.step_time_s);
    ratio["median"] = finite_or_null(median(measurement.step_time_s) / *form.step_time_s);
    value["layer_forward_s"] = finite_or_null(form.forward_s);
    value["layer_backward_s"] = finite_or_null(form.backward_s);
  } else {
    value["reason"] = ratio["reason"] = form.reason;
  }
}

// What a simulation says nothing of.
void take_out_unsimulated(Json& entry, const ResolvedLink& link) {
  entry["link"] = {{"source", link.source}};
  Json& metrics = entry["metrics"];
  for (const char* name : {"loss", "gradient_norm"}) {
    metrics[name] = Json::array({nullptr});
    metrics[std::string(name) + "_reason"] = "simulated: nothing is trained";
  }
  for (const char* name : {"closed_form_step_time_s", "step_time_over_closed_form"}) {
    metrics[name] = {{"direction", "lower"}, {"median", nullptr}, {"reason", "simulated: nothing is measured"}};
  }
  metrics["traffic_bytes"]["wire_reason"] = "simulated: nothing is sent";
  metrics["peak_memory_bytes"]["resident_set"] = nullptr;
  metrics["peak_memory_bytes"]["resident_set_reason"] = "simulated: nothing is allocated";
}

// What is predicted for each pipeline rank, for each rank of the run; null where nothing is.
template <class Predicted, class AsJson>
Json by_rank(const PreparedRun& run, const std::vector<Predicted>& predicted, const AsJson& as_json) {
  if (predicted.empty()) {
    return nullptr;
  }
  Json list = Json::array();
  for (std::int64_t rank = 0; rank < run.ranks(); ++rank) {
    const std::int64_t stage = coordinates_of(rank, run.plan().parallel).pipeline;
    list.push_back(as_json(predicted[static_cast<std::size_t>(stage)]));
  }
  return list;
}

std::string new_run_id() {
  std::random_device device;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{:x}-{:x}-{:08x}", std::chrono::duration_cast<std::chrono::seconds>(now).count(), getpid(),
                     device());
}

Json entry_head(const Experiment& experiment, const PreparedRun& run) {
  Json entry;
  entry["name"] = run.name;
  entry["run"] = run.request.name;
  entry["sweep"] = Json::object();
  for (const auto& [place, value] : experiment.setting_of(run).swept) {
    entry["sweep"][place] = value;
  }
  entry["status"] = "ok";
  entry["reason"] = nullptr;
  entry["plan"] = plan_as_json(run.plan());
  entry["ranks"] = run.ranks();
  entry["threads_per_rank"] = run.share.threads_per_rank;
  entry["compute_threads"] = run.ranks() * run.share.threads_per_rank;
  entry["cores"] = run.share.cores;
  entry["oversubscribed"] = run.share.oversubscribed;
  entry["data_sha256"] = experiment.data_sha256[run.setting];
  return entry;
}

}  // namespace

Json plan_as_json(const Plan& plan) {
  return {{"method", plan.method},
          {"parallel",
           {{"data", plan.parallel.data}, {"pipeline", plan.parallel.pipeline}, {"tensor", plan.parallel.tensor}}},
          {"zero_stage", plan.zero_stage},
          {"micro_batch_size", plan.micro_batch_size},
          {"micro_batches", plan.micro_batches},
          {"groups", plan.groups},
          {"chunks", plan.chunks},
          {"recompute", std::string(name_of(plan.recompute))},
          {"prefetch_layers", plan.prefetch_layers},
          {"resident_layers", plan.resident_layers},
          {"keep_full_gradient", plan.keep_full_gradient},
          {"update_after_norm", plan.update_after_norm}};
}

Json link_as_json(const ResolvedLink& link) {
  Json json;
  const bool emulated = link.link.bandwidth_bits_per_s > 0;
  json["bandwidth_bits_per_s"] = emulated ? Json(link.link.bandwidth_bits_per_s) : Json(nullptr);
  json["latency_s"] = link.link.latency_s;
  json["source"] = link.source;
  if (link.source == "network") {
    json["latency_s"] = nullptr;
    json["reason"] = "a real one: context.ranks names what messages travel by";
  } else if (!emulated) {
    json["reason"] = "not emulated: as fast as memory allows";
  }
  if (link.compute_time_s) {
    json["compute_time_s"] = finite_or_null(*link.compute_time_s);
  }
  return json;
}

Json traffic_as_json(const StepTraffic& traffic) {
  const auto unit = [&](UnitKind kind) {
    return UnitTraffic{traffic_of(traffic, TrafficKind::data_reduce, kind),
                       traffic_of(traffic, TrafficKind::data_gather, kind)};
  };
  Json json;
  json["data"] = data_traffic(unit(UnitKind::embedding), unit(UnitKind::layer), unit(UnitKind::head));
  json["pipeline"] = {{"send", traffic_of(traffic, TrafficKind::pipeline_send)}};
  json["tensor"] = Json::object();
  if (const std::int64_t tensor = traffic_of(traffic, TrafficKind::tensor); tensor != 0) {
    json["tensor"]["all_reduce"] = tensor;
  }
  json["control"] = traffic_of(traffic, TrafficKind::control);
  return json;
}

Json prediction_of_traffic(const PreparedRun& run) {
  return by_rank(run, run.prediction.traffic, [](const TrafficPrediction& traffic) {
    Json entry;
    entry["data"] = data_traffic(traffic.embedding, traffic.layers, traffic.head);
    entry["pipeline"] = {{"send", traffic.pipeline_send}};
    entry["tensor"] = Json::object();
    return entry;
  });
}

Json prediction_of_memory(const PreparedRun& run) {
  return by_rank(run, run.prediction.memory, [](const MemoryPrediction& memory) {
    return Json{{"parameters", memory.parameters},
                {"gradients", memory.gradients},
                {"optimizer", memory.optimizer},
                {"checkpoints", memory.checkpoints},
                {"working_set", nullptr},
                {"gathered", memory.gathered},
                {"transport", nullptr},
                {"total", nullptr}};
  });
}

Json entry_not_run(const Experiment& experiment, const PreparedRun& run, const std::string& status,
                   const std::string& reason) {
  Json entry = entry_head(experiment, run);
  entry["status"] = status;
  entry["reason"] = reason;
  return entry;
}

Json entry_of_run(const Experiment& experiment, const PreparedRun& run, const ResolvedLink& link,
                  const TrainOutcome& outcome) {
  const auto warmup = static_cast<std::size_t>(experiment.setting_of(run).warmup_steps);
  LAMINA_CHECK(outcome.steps.size() > warmup, "{} steps ran, {} of them warm-up", outcome.steps.size(), warmup);
  const std::span<const StepRecord> measured = std::span(outcome.steps).subspan(warmup);
  const Measurement measurement = measure(measured, tokens_per_step(run.plan()));

  Json entry = entry_head(experiment, run);
  entry["link"] = link_as_json(link);
  entry["built"] = {{"layers", outcome.layers_built}, {"parameters", outcome.parameters_built}};
  Json& metrics = entry["metrics"];
  metrics["step_time_s"] = sampled_metric("lower", measurement.step_time_s);
  metrics["step_time_s"]["per_rank_median"] = numbers(measurement.rank_step_time_s);
  metrics["step_time_s"]["per_rank_busy_median"] = numbers(measurement.rank_busy_s);
  metrics["step_time_s"]["slow_rank"] = slow_rank_as_json(measurement.slow_rank);
  metrics["tokens_per_s"] = sampled_metric("higher", measurement.tokens_per_s);
  metrics["exposed_communication_s"] = sampled_metric("lower", measurement.exposed_communication_s);
  add_loss(metrics, outcome);
  add_series(metrics, "gradient_norm", outcome, &StepRecord::gradient_norm);
  add_loss_scale(metrics, experiment.setting_of(run).precision, outcome, warmup);
  metrics["counted_tokens"] = Json::array();
  for (const StepRecord& step : outcome.steps) {
    metrics["counted_tokens"].push_back(step.counted_targets);
  }
  const Setting& setting = experiment.setting_of(run);
  metrics["traffic_bytes"] = traffic_metric(run, outcome.collectives, measured);
  add_wire(metrics["traffic_bytes"], experiment.placement, outcome);
  metrics["peak_memory_bytes"] = memory_metric(run, outcome);
  if (setting.cluster) {
    take_out_unsimulated(entry, link);
  } else {
    add_closed_form(metrics, run, setting.precision, link, measurement, outcome, setting.warmup_steps);
  }
  return entry;
}

double most_bytes_sent(const Json& traffic) {
  double most = 0;
  for (const Json& rank : traffic["per_rank"]) {
    most = std::max(most, rank["data"]["reduce"].get<double>() + rank["data"]["gather"].get<double>() +
                              rank["pipeline"]["send"].get<double>() + rank["tensor"].value("all_reduce", 0.0));
  }
  return most;
}

double most_bytes_held(const Json& memory) {
  double most = 0;
  for (const Json& rank : memory["per_rank"]) {
    most = std::max(most, rank["total"].get<double>());
  }
  return most;
}

Json begin_result(const Experiment& experiment, const std::vector<std::string>& arguments, const BlasInfo& blas) {
  std::int64_t most_ranks = 1;
  int threads_per_rank = 1;  // of the run with the most ranks
  for (const PreparedRun& run : experiment.runs) {
    if (run.not_started.empty() && run.ranks() >= most_ranks) {
      most_ranks = run.ranks();
      threads_per_rank = run.share.threads_per_rank;
    }
  }
  if (experiment.placement.over_processes()) {
    most_ranks = std::ssize(experiment.placement.processes);
  }
  Json result;
  result["schema_version"] = 1;
  result["run_id"] = new_run_id();
  result["started"] = utc_now();
  result["ended"] = nullptr;
  result["argv"] = arguments;
  result["context"] = describe_context(experiment.placement, most_ranks, threads_per_rank, blas);
  if (experiment.scenario.executor == Executor::simulate) {
    for (Json& rank : result["context"]["ranks"]) {
      rank["network"] = "simulated";
    }
  }
  result["scenario"] = experiment.scenario.document;
  result["scenario_sha256"] = experiment.scenario_sha256;
  result["data_sha256"] = experiment.data_sha256.front();
  result["runs"] = Json::array();
  for (const PreparedRun& run : experiment.runs) {
    result["runs"].push_back(entry_not_run(experiment, run, "skipped", "the program ended before it"));
  }
  result["expectations"] = Json::array();
  return result;
}

void record_link(Json& result, const ResolvedLink& link) {
  if (!result["scenario"].contains("transport") || !result["scenario"]["transport"].contains("link")) {
    return;
  }
  Json& transport = result["scenario"]["transport"];
  const Json resolved = link_as_json(link);
  for (const auto& [name, value] : resolved.items()) {
    transport["link"][name] = value;
  }
}

void ResultFile::save(const Json& result) {
  // A command line or a path may hold bytes that are not UTF-8.
  write_whole_file(path_, result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", existing_);
  existing_ = Existing::replace;  // it is ours from now on
}

}  // namespace lamina
