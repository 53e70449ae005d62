#include "impl/harness/calibrate.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "impl/analysis/cluster_file.h"
#include "impl/analysis/ends.h"
#include "impl/analysis/forms.h"
#include "impl/base/error.h"
#include "impl/base/strict_json.h"
#include "impl/harness/context.h"
#include "impl/harness/runner.h"
#include "impl/kernels/matrix.h"

namespace lamina {
namespace {

constexpr std::int64_t kSteps = 3;  // beside the first, which is cold

using OpKey = std::pair<UnitKind, OpKind>;

struct Durations {
  std::vector<double> cold_s, alone_s, beside_s;
};

bool is_timed(const Op& op) { return is_compute(op.kind) || op.kind == OpKind::update; }

// Whether [start, end) of an event meets one of the sorted busy intervals of its rank's communication.
struct Interval {
  double start_s, end_s;
};
bool meets(const std::vector<Interval>& busy, const TraceEvent& event) {
  return std::any_of(busy.begin(), busy.end(),
                     [&](const Interval& one) { return one.start_s < event.end_s && event.start_s < one.end_s; });
}

void collect(const Schedule& schedule, const Trace& trace, std::map<OpKey, Durations>& durations) {
  const std::vector<Op>& ops = schedule.programs.front().ops;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Interval>> busy;  // by rank and step
  for (const TraceEvent& event : trace) {
    const Op& op = ops.at(static_cast<std::size_t>(event.op));
    if (op.kind == OpKind::gather || op.kind == OpKind::reduce || op.kind == OpKind::all_reduce) {
      busy[{event.rank, event.step}].push_back({event.start_s, event.end_s});
    }
  }
  for (const TraceEvent& event : trace) {
    const Op& op = ops.at(static_cast<std::size_t>(event.op));
    if (!is_timed(op)) {
      continue;
    }
    Durations& of_kind = durations[{op.unit.kind, op.kind}];
    const double time = event.end_s - event.start_s;
    if (event.step == 0) {
      of_kind.cold_s.push_back(time);
    } else {
      (meets(busy[{event.rank, event.step}], event) ? of_kind.beside_s : of_kind.alone_s).push_back(time);
    }
  }
}

class Calibrator {
 public:
  Calibrator(const Experiment& experiment, const Backend& backend, Reporter& reporter)
      : experiment_(experiment),
        backend_(backend),
        reporter_(reporter),
        setting_(experiment.scenario.settings.front()) {
    for (const PreparedRun& run : experiment.runs) {
      ranks_ = std::max(ranks_, run.plan().parallel.data);
    }
  }

  Calibration run() {
    Calibration result;
    result.ranks = ranks_;
    result.threads_per_rank = compute_share(experiment_.placement, ranks_).threads_per_rank;
    result.precision = name_of(setting_.precision.compute);
    result.link = resolve_link(experiment_, 0, backend_, reporter_).link;

    reporter_.note("compute alone");
    std::map<OpKey, Durations> alone, beside;
    train("data_parallel", 0, false, {}, alone);
    if (ranks_ > 1) {
      reporter_.note("compute beside communication");
      train("layered_accumulation", 3, true, result.link, beside);
    }
    for (auto& [key, durations] : alone) {
      result.ops.push_back(timing_of(key, durations, beside[key].beside_s));
    }
    reporter_.note("matrix products");
    result.peak_flops_per_s = peak_rate();
    add_rates(result);
    reporter_.note("the link");
    result.measured_link = measure(result.link);
    return result;
  }

 private:
  void train(const char* method_name, int zero_stage, bool communication, const EmulatedLink& link,
             std::map<OpKey, Durations>& durations) const {
    PlanRequest request;
    request.method = method_name;
    request.parallel.data = ranks_;
    request.zero_stage = zero_stage;
    request.recompute = experiment_.runs.front().plan().recompute;
    const Method& method = backend_.method_named(method_name);
    PreparedRun run;
    run.request.name = run.name = "calibration";
    run.share = compute_share(experiment_.placement, ranks_);
    run.schedule = backend_.build_schedule(method, backend_.resolve_plan(method, setting_.model, setting_.batch,
                                                                         request, setting_.optimizer.clip_norm > 0));
    TrainRequest training = train_request(experiment_, run, link);
    training.communication = communication;
    training.dump.reset();
    training.disturbances.clear();
    training.warmup_steps = 1;
    training.measured_steps = kSteps;
    training.trace = true;
    training.traced_steps = 1 + kSteps;  // the first, cold one too
    const TrainOutcome outcome = backend_.train(training, [](std::int64_t, const StepRecord&) {});
    // Where nothing is sent, collectives still stand in the trace, at once over.
    Trace trace = outcome.trace;
    if (!communication) {
      std::erase_if(trace, [&](const TraceEvent& event) {
        return !is_timed(run.schedule.programs.front().ops.at(static_cast<std::size_t>(event.op)));
      });
    }
    collect(run.schedule, trace, durations);
  }

  static OpTiming timing_of(const OpKey& key, const Durations& alone, const std::vector<double>& beside) {
    OpTiming timing;
    timing.unit = key.first == UnitKind::layer ? "layer" : key.first == UnitKind::head ? "head" : "embedding";
    timing.kind = name_of(key.second);
    LAMINA_CHECK(!alone.cold_s.empty() && !alone.alone_s.empty(), "no {} of {} was timed", timing.kind, timing.unit);
    timing.cold_s = median(alone.cold_s);
    timing.alone = summarize(alone.alone_s);
    timing.samples = std::ssize(alone.alone_s);
    if (!beside.empty()) {
      timing.beside = summarize(beside);
      timing.beside_samples = std::ssize(beside);
    }
    return timing;
  }

  // Square products on all ranks at once, as training computes; the slowest rank's median.
  template <class Real>
  double product_rate() const {
    constexpr std::int64_t kSide = 1024;
    constexpr int kTimes = 5;
    std::vector<double> medians(static_cast<std::size_t>(ranks_));
    std::vector<std::thread> threads;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<Real> a(kSide * kSide, Real(0.5)), b(a), c(a);
        std::vector<double> times;
        for (int i = 0; i < kTimes + 1; ++i) {
          const auto start = std::chrono::steady_clock::now();
          kernels::multiply(kernels::Transpose::no, kernels::Transpose::no, kSide, kSide, kSide, Real(1), a.data(),
                            kSide, b.data(), kSide, Real(0), c.data(), kSide);
          const double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          if (i > 0) {
            times.push_back(time);
          }
        }
        medians[static_cast<std::size_t>(rank)] = median(times);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return 2.0 * kSide * kSide * kSide / *std::max_element(medians.begin(), medians.end());
  }
  double peak_rate() const {
    return setting_.precision.wide() == RealType::fp64 ? product_rate<double>() : product_rate<float>();
  }

  static double median_of(const Calibration& result, const char* unit, const char* kind) {
    for (const OpTiming& timing : result.ops) {
      if (timing.unit == unit && timing.kind == kind) {
        return timing.alone.median;
      }
    }
    throw Error(fmt::format("no {} of {} was timed", kind, unit));
  }

  void add_rates(Calibration& result) const {
    const Recompute recompute = experiment_.runs.front().plan().recompute;
    const auto micro = static_cast<double>(setting_.batch.micro);
    const double layer_s = median_of(result, "layer", "forward") + median_of(result, "layer", "backward");
    const double flops =
        analysis::hardware_step_flops(setting_.model, micro, recompute) / static_cast<double>(setting_.model.layers);
    result.layer_share_of_peak = std::min(1.0, flops / layer_s / result.peak_flops_per_s);
    const double bytes = static_cast<double>(unit_parameters(setting_.model, layer_unit(0))) *
                         analysis::update_bytes_per_parameter(static_cast<double>(moments_of(setting_.optimizer.kind)),
                                                              static_cast<double>(bytes_of(setting_.precision.wide())));
    result.memory_bytes_per_s = bytes / median_of(result, "layer", "update");
    result.memory_bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) /
                          static_cast<double>(ranks_);
  }

  LinkMeasurement measure(const EmulatedLink& link) const {
    LinkMeasureOptions options;
    options.most_bytes = std::int64_t{1} << 20;
    options.seconds_a_size = 0.02;
    return measure_threads(static_cast<int>(std::max<std::int64_t>(2, ranks_)), link, options);
  }

  const Experiment& experiment_;
  const Backend& backend_;
  Reporter& reporter_;
  const Setting& setting_;
  std::int64_t ranks_ = 1;
};

Json quantity(double value, const std::string& source) { return {{"value", value}, {"source", source}}; }

Json link_of(const LinkMeasurement& measurement, const std::string& how) {
  if (!measurement.estimate) {
    throw UsageError("one rank has no link: give --ranks 2 or more");
  }
  const LinkEstimate& estimate = *measurement.estimate;
  return {{"name", "measured"},
          {"bandwidth_bits_per_s", quantity(estimate.bandwidth_bits_per_s, how)},
          {"latency_s", quantity(estimate.latency_s, how)},
          {"efficiency", quantity(1, "measured: the bandwidth is what large messages reach")}};
}

}  // namespace

Calibration calibrate(const Experiment& experiment, const Backend& backend, Reporter& reporter) {
  if (experiment.scenario.executor != Executor::train) {
    throw UsageError(
        fmt::format("{}: executor is simulate; calibration trains on this machine", experiment.scenario.file));
  }
  return Calibrator(experiment, backend, reporter).run();
}

std::string calibration_table(const Calibration& calibration) {
  constexpr const char* kRow = "{:<10} {:<9} {:>10} {:>10} {:>21} {:>7} {:>10} {:>21} {:>7}\n";
  const auto ms = [](double seconds) { return fmt::format("{:.4f}", seconds * 1e3); };
  const auto spread = [&](const Summary& summary) { return ms(summary.low) + ".." + ms(summary.high); };
  std::string text = fmt::format("# {} ranks of {} threads, {}\n", calibration.ranks, calibration.threads_per_rank,
                                 calibration.precision) +
                     fmt::format(fmt::runtime(kRow), "# unit", "op", "cold ms", "alone ms", "low..high ms", "times",
                                 "beside ms", "low..high ms", "times");
  for (const OpTiming& timing : calibration.ops) {
    text += fmt::format(fmt::runtime(kRow), timing.unit, timing.kind, ms(timing.cold_s), ms(timing.alone.median),
                        spread(timing.alone), timing.samples, timing.beside ? ms(timing.beside->median) : "-",
                        timing.beside ? spread(*timing.beside) : "-", timing.beside_samples);
  }
  text += fmt::format(
      "# alone: nothing sent; beside: while the rank sent or received\n"
      "# a rank: {:.4g} GFLOP/s in matrix products, of which layers reach {:.1f} %; memory {:.4g} GB/s\n",
      calibration.peak_flops_per_s / 1e9, 100 * calibration.layer_share_of_peak, calibration.memory_bytes_per_s / 1e9);
  if (calibration.measured_link.estimate) {
    text +=
        fmt::format("# link: latency {:.4g} s, bandwidth {:.4g} bit/s\n", calibration.measured_link.estimate->latency_s,
                    calibration.measured_link.estimate->bandwidth_bits_per_s);
  }
  return text;
}

Json cluster_json(const Calibration& calibration, const ModelShape& model, const std::string& name) {
  const std::string when = "measured by lamina calibrate, " + utc_now();
  const Json link = link_of(calibration.measured_link, when + ", point to point between two ranks");
  Json document;
  document["schema_version"] = 1;
  document["name"] = name;
  document["purpose"] = "This machine, its ranks as devices";
  document["node_size"] = quantity(static_cast<double>(std::max<std::int64_t>(2, calibration.ranks)),
                                   "the ranks of the calibration, all on one machine");
  document["device"] = {
      {"name", fmt::format("rank of {} threads", calibration.threads_per_rank)},
      {"peak_flops_per_s",
       {{calibration.precision, quantity(calibration.peak_flops_per_s, when + ", square matrix products of 1024")}}},
      {"memory_bytes", quantity(calibration.memory_bytes, "physical memory over the ranks")},
      {"memory_bytes_per_s", quantity(calibration.memory_bytes_per_s, when + ", the update of a layer")},
      {"efficiency",
       {{"points", Json::array({{{"hidden", model.hidden}, {"share_of_peak", calibration.layer_share_of_peak}}})},
        {"source", when + ", forward and backward of a layer"}}}};
  document["links"] = {{"node", link}, {"network", link}};
  return document;
}

Json cluster_with_link(const std::string& file, const LinkMeasurement& measurement, const std::string& how) {
  analysis::read_cluster(file);  // throws when it is none
  Json document = read_strict_json(file);
  const Json link = link_of(measurement, how);
  document["links"]["network"] = link;
  return document;
}

}  // namespace lamina
