#include "impl/harness/prepare.h"

#include <algorithm>
#include <map>

#include "impl/analysis/cost.h"
#include "impl/base/error.h"
#include "impl/harness/result.h"

namespace lamina {
namespace {

// All ranks of a host live in its memory, taken to be as large as this one's; what cannot fit is refused before it is
// tried.
void check_fits(const PreparedRun& run) {
  if (run.prediction.memory.empty()) {
    return;
  }
  std::vector<double> of_a_rank;  // [stage]
  for (const MemoryPrediction& memory : run.prediction.memory) {
    of_a_rank.push_back(static_cast<double>(memory.state()) + static_cast<double>(memory.checkpoints) +
                        static_cast<double>(memory.gathered));
  }
  std::sort(of_a_rank.begin(), of_a_rank.end());
  const std::int64_t ranks = run.share.most_on_a_host;
  double bytes = 0;  // if they are those that need the least
  std::int64_t left = ranks;
  for (const double stage : of_a_rank) {
    const std::int64_t alike = std::min(left, run.plan().parallel.data);
    bytes += static_cast<double>(alike) * stage;
    left -= alike;
  }
  if (const double available = physical_memory_bytes(); bytes > available) {
    throw UsageError(fmt::format("{} ranks need at least {:.3g} GB; this machine has {:.3g} GB", ranks, bytes / 1e9,
                                 available / 1e9));
  }
}

// The same once the schedule says what every rank allocates: all ranks of this host together must fit into it.
void check_allocation_fits(const PreparedRun& run, const Setting& setting, const Backend& backend,
                           const Placement& placement) {
  if (!run.not_started.empty() || setting.cluster) {  // nothing of it is allocated here
    return;
  }
  const Parallel& parallel = run.plan().parallel;
  std::map<std::int64_t, double> bytes_of_stage;  // data-parallel ranks of a stage are alike; the first holds the most
  double bytes = 0;
  std::int64_t ranks = 0;
  for (std::int64_t rank = 0; rank < run.ranks(); ++rank) {
    if (placement.over_processes() && placement.of(rank).host != host_name()) {
      continue;
    }
    const std::int64_t stage = coordinates_of(rank, parallel).pipeline;
    if (!bytes_of_stage.contains(stage)) {
      const RankMemory memory = backend.planned_memory(run.schedule, stage, 0, setting.optimizer, setting.precision,
                                                       run.share.threads_per_rank);
      bytes_of_stage[stage] = static_cast<double>(memory.total());
    }
    bytes += bytes_of_stage[stage];
    ++ranks;
  }
  if (const double available = physical_memory_bytes(); bytes > available) {
    throw UsageError(
        fmt::format("{} ranks allocate {:.3g} GB; this machine has {:.3g} GB", ranks, bytes / 1e9, available / 1e9));
  }
}

// The forms multiply sizes that a scenario may set to anything: in double first, before they are trusted in 64 bits.
void check_countable(const Setting& setting, const Parallel& parallel) {
  const auto wide = [](std::int64_t value) { return static_cast<double>(value); };
  const double activations = wide(setting.batch.global) * wide(setting.model.sequence) * wide(setting.model.hidden) *
                             (wide(setting.model.layers) + 1);
  if (activations > 1e17) {
    throw UsageError(
        fmt::format("batch.global is {}: a step has {:.3g} activations between layers; at most 1e17 are "
                    "supported",
                    setting.batch.global, activations));
  }
  const ModelShape& model = setting.model;
  const double rows = wide(setting.batch.micro) * wide(model.sequence);
  const double largest = std::max({12 * wide(model.hidden) * wide(model.hidden),  // a layer's parameters
                                   wide(model.vocabulary + model.sequence) * wide(model.hidden),
                                   rows * (9 * wide(model.hidden) + wide(model.vocabulary)),
                                   rows * wide(model.heads) * wide(model.sequence)});  // attention probabilities
  if (largest > 1e15 || largest * wide(model.layers) > 1e17) {
    throw UsageError(
        fmt::format("a model of {} layers has buffers of {:.3g} numbers; at most 1e15 each, and 1e17 over "
                    "all layers, are supported",
                    model.layers, largest));
  }
  constexpr double kMostRanks = 1e6;
  if (const double ranks = wide(parallel.data) * wide(parallel.pipeline) * wide(parallel.tensor); ranks > kMostRanks) {
    throw UsageError(fmt::format("parallel asks for {:.3g} ranks; at most {:.0e} are supported", ranks, kMostRanks));
  }
  // Forward and backward of every unit and micro-batch, over all pipeline ranks.
  constexpr double kMostOps = 5e6;
  const double micro_batches = wide(setting.batch.global) / (wide(setting.batch.micro) * wide(parallel.data));
  if (const double ops = 2 * (wide(model.layers) + 2) * micro_batches; ops > kMostOps) {
    throw UsageError(
        fmt::format("a step of {} layers and {:.3g} micro-batches has {:.3g} ops; at most {:.0e} are supported",
                    model.layers, micro_batches, ops, kMostOps));
  }
}

// Which launcher line a run needs.
std::string too_few_processes(std::int64_t needed, std::size_t started) {
  return fmt::format("it needs {} ranks, and {} {} started: mpirun -n {} lamina run …", needed, started,
                     started == 1 ? "was" : "were", needed);
}

PreparedRun prepare_run(const Setting& setting, const RunRequest& request, const Backend& backend,
                        const Placement& placement) {
  PreparedRun run;
  run.name = full_name(request, setting);
  run.request = request;
  check_countable(setting, request.plan.parallel);
  const Method& method = backend.method_named(request.plan.method);
  const bool update_after_norm = setting.optimizer.clip_norm > 0 || setting.precision.scales_loss();
  const Plan plan = backend.resolve_plan(method, setting.model, setting.batch, request.plan, update_after_norm);
  run.prediction = predict(method, plan, setting.precision, setting.optimizer.kind);
  run.schedule.plan = plan;
  if (setting.cluster) {  // throws where the device has no such rate
    analysis::rates_of(*setting.cluster, std::string(name_of(setting.precision.compute)), setting.model.hidden,
                       analysis::RateKind::reached);
  } else {  // its ranks run here
    if (placement.has(run.ranks())) {
      run.share = compute_share(placement, run.ranks());
    } else {
      run.not_started = too_few_processes(run.ranks(), placement.processes.size());
    }
    check_fits(run);
  }
  run.schedule = backend.build_schedule(method, plan);
  check_allocation_fits(run, setting, backend, placement);
  return run;
}

// On one rank a link means nothing; a share of the compute time can then be asked for, and is not needed.
void check_calibration(const Experiment& experiment) {
  for (std::size_t index = 0; index < experiment.scenario.settings.size(); ++index) {
    const bool alone = std::all_of(experiment.runs.begin(), experiment.runs.end(),
                                   [&](const PreparedRun& run) { return run.setting != index || run.ranks() == 1; });
    const bool asked = experiment.scenario.settings[index].link.all_reduce_share_of_compute.has_value();
    if (asked && !alone && calibration_run(experiment, index) == nullptr) {
      throw UsageError(
          fmt::format("{}: transport.link.all_reduce_share_of_compute needs a run with data-parallel ranks and one "
                      "pipeline rank to calibrate by",
                      experiment.scenario.file));
    }
  }
}

void check_files(const Scenario& scenario, const Backend& backend, std::vector<std::string>& hashes) {
  for (const Setting& setting : scenario.settings) {
    hashes.push_back(backend.data_sha256(setting.data, setting.model, setting.seed));
    if (!setting.initial_weights.empty()) {
      backend.check_weights(setting.initial_weights, setting.model);
    }
  }
}

}  // namespace

const PreparedRun* calibration_run(const Experiment& experiment, std::size_t setting) {
  for (const PreparedRun& run : experiment.runs) {
    const Parallel& parallel = run.plan().parallel;
    if (run.setting == setting && parallel.data > 1 && parallel.pipeline == 1 && parallel.tensor == 1) {
      return &run;
    }
  }
  return nullptr;
}

Experiment prepare(const Scenario& scenario, const Backend& backend, const Placement& placement) {
  if (scenario.executor == Executor::search) {
    throw UsageError(fmt::format("{}: executor is search: lamina plan searches it", scenario.file));
  }
  Experiment experiment;
  experiment.placement = placement;
  experiment.scenario = scenario;
  experiment.scenario_sha256 = backend.sha256(canonical_text(scenario));
  for (std::size_t index = 0; index < scenario.settings.size(); ++index) {
    const Setting& setting = scenario.settings[index];
    for (const RunRequest& request : setting.runs) {
      try {
        experiment.runs.push_back(prepare_run(setting, request, backend, placement));
      } catch (const UsageError& error) {
        throw UsageError(fmt::format("{}: run {}: {}", scenario.file, full_name(request, setting), error.what()));
      }
      experiment.runs.back().setting = index;
    }
  }
  check_calibration(experiment);
  try {
    check_files(scenario, backend, experiment.data_sha256);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", scenario.file, error.what()));
  }
  return experiment;
}

TrainRequest train_request(const Experiment& experiment, const PreparedRun& run, const EmulatedLink& link) {
  const Setting& setting = experiment.setting_of(run);
  TrainRequest request;
  request.schedule = run.schedule;
  request.precision = setting.precision;
  request.optimizer = setting.optimizer;
  request.data = setting.data;
  request.seed = setting.seed;
  request.initial_weights = setting.initial_weights;
  request.dump = dump_of(setting, run.name);
  request.warmup_steps = setting.warmup_steps;
  request.measured_steps = setting.measured_steps;
  request.link = link;
  request.collectives = setting.collectives;
  request.compute_threads_per_rank = run.share.threads_per_rank;
  for (const Disturbance& disturbance : setting.disturbances) {
    if (disturbance.rank < run.ranks()) {
      request.disturbances.push_back(disturbance);
    }
  }
  return request;
}

Json describe_experiment(const Experiment& experiment) {
  Json described;
  described["scenario"] = experiment.scenario.document;
  described["scenario_sha256"] = experiment.scenario_sha256;
  described["data_sha256"] = experiment.data_sha256.front();
  described["runs"] = Json::array();
  for (const PreparedRun& run : experiment.runs) {
    Json entry;
    entry["name"] = run.name;
    entry["plan"] = plan_as_json(run.plan());
    entry["ranks"] = run.ranks();
    entry["threads_per_rank"] = run.share.threads_per_rank;
    entry["parameters"] = model_parameters(run.plan().model);
    entry["predicted"] = {{"traffic_bytes", prediction_of_traffic(run)},
                          {"peak_memory_bytes", prediction_of_memory(run)}};
    if (!run.prediction.reason.empty()) {
      entry["predicted"]["reason"] = run.prediction.reason;
    }
    described["runs"].push_back(std::move(entry));
  }
  return described;
}

std::string support_table(const Backend& backend) {
  constexpr ModelShape kSmall{.layers = 4, .hidden = 8, .heads = 2, .sequence = 4, .vocabulary = 16};
  constexpr Batch kBatch{.global = 8, .micro = 1};
  std::string table = fmt::format(
      "# executor train, transport threads, precision fp64, fp32, bf16 and fp16\n"
      "# tried on {} layers and {} micro-batches, two data-parallel ranks\n"
      "# {:<26} {:>9}  {:>4}  {:<10}  {}\n",
      kSmall.layers, kBatch.global / 2, "method", "pipeline", "ZeRO", "recompute", "supported");
  for (const Method* method : backend.methods) {
    for (const std::int64_t pipeline : {1, 2}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
          PlanRequest request;
          request.method = method->name;
          request.parallel = {.data = 2, .pipeline = pipeline, .tensor = 1};
          request.zero_stage = stage;
          request.recompute = recompute;
          std::string answer = "yes";
          try {
            const Plan plan = backend.resolve_plan(*method, kSmall, kBatch, request, true);
            backend.build_schedule(*method, plan);
          } catch (const std::exception& error) {
            answer = fmt::format("no: {}", error.what());
          }
          table += fmt::format("{:<28} {:>9}  {:>4}  {:<10}  {}\n", method->name, pipeline, stage, name_of(recompute),
                               answer);
        }
      }
    }
  }
  return table;
}

}  // namespace lamina
