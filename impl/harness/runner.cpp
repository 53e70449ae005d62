#include "impl/harness/runner.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "impl/base/error.h"
#include "impl/harness/chrome_trace.h"
#include "impl/harness/context.h"
#include "impl/harness/expectations.h"
#include "impl/harness/result.h"
#include "impl/harness/simulated_run.h"
#include "impl/harness/statistics.h"

namespace lamina {
namespace {

// ---- before the first run ----------------------------------------------------------------------------------------

// A file that will be written, and the key or option that names it.
struct Output {
  std::string key;
  std::string path;
};

[[noreturn]] void refuse(const Output& output, const std::string& reason) {
  constexpr std::size_t kLongest = 300;
  const bool long_one = output.path.size() > kLongest;
  throw UsageError(
      fmt::format("{}: {}{} {}", output.key, output.path.substr(0, kLongest), long_one ? "..." : "", reason));
}

void check_can_be_named(const Output& output, bool force) {
  std::error_code error;
  const bool exists = std::filesystem::exists(output.path, error);
  if (error) {
    refuse(output, fmt::format("cannot be looked at: {}", error.message()));
  }
  if (exists && !force) {
    refuse(output, "exists; --force replaces it");
  }
  constexpr std::size_t kEndingOfTemporaryName = 7;
  if (std::filesystem::path(output.path).filename().native().size() + kEndingOfTemporaryName > NAME_MAX) {
    refuse(output, fmt::format("is too long a name; at most {} bytes", NAME_MAX - kEndingOfTemporaryName));
  }
}

void make_folder(const Output& output) {
  const std::filesystem::path folder = std::filesystem::path(output.path).parent_path();
  std::error_code error;
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
  }
  if (error) {
    refuse(output, fmt::format("cannot be written: its folder cannot be made: {}", error.message()));
  }
}

std::vector<Output> outputs_of(const Experiment& experiment, const RunOptions& options) {
  std::vector<Output> outputs{{"--out", options.out + "/result.json"}};
  if (options.trace) {
    outputs.push_back({"--out", options.out + "/trace.json"});
  }
  for (const PreparedRun& run : experiment.runs) {
    if (const auto dump = dump_of(experiment.setting_of(run), run.name)) {
      for (const Output& output : {Output{"dump.gradients", dump->gradients}, Output{"dump.weights", dump->weights}}) {
        if (!output.path.empty()) {
          outputs.push_back(output);
        }
      }
    }
  }
  return outputs;
}

// The file behind a path, however the path is spelt.
std::string file_behind(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

// No output may take the place of another one, nor of what the runs read.
void check_different(const Experiment& experiment, const std::vector<Output>& outputs) {
  std::map<std::string, std::string> taken{{file_behind(experiment.scenario.file), "the scenario"}};
  for (const Setting& setting : experiment.scenario.settings) {
    const std::pair<std::string, const char*> inputs[]{{setting.data.path, "data"},
                                                       {setting.initial_weights, "initial_weights"}};
    for (const auto& [path, what] : inputs) {
      if (!path.empty()) {
        taken.emplace(file_behind(path), what);
      }
    }
  }
  for (const Output& output : outputs) {
    const auto& [place, is_new] =
        taken.emplace(file_behind(output.path), fmt::format("{} {}", output.key, output.path));
    if (!is_new) {
      refuse(output, fmt::format("would overwrite {}", place->second));
    }
  }
}

void warn_about(const Experiment& experiment, Reporter& reporter) {
  for (const PreparedRun& run : experiment.runs) {
    if (run.share.oversubscribed) {
      reporter.warn(fmt::format("run {} has {} ranks on {} cores: its times say little about speed", run.name,
                                run.ranks(), run.share.cores));
    }
  }
  const auto cores = static_cast<double>(machine_cores());
  const bool timed = experiment.scenario.executor == Executor::train;
  if (const double load = load_average(); timed && load > cores / 2) {
    reporter.warn(fmt::format("the machine is busy (load {:.1f} on {} cores): times will be too long", load, cores));
  }
}

// ---- the link ----------------------------------------------------------------------------------------------------

// Bytes that a rank sends to all-reduce the whole model's gradient once over `data` ranks.
double all_reduce_bytes(const Plan& plan, const Precision& precision) {
  double bytes = 0;
  for (const Unit unit : all_units(plan.model)) {
    const std::int64_t elements = padded(unit_parameters(plan.model, unit), plan.parallel.data);
    bytes += static_cast<double>(elements * bytes_of(precision.reduce));
  }
  const auto ranks = static_cast<double>(plan.parallel.data);
  return 2 * (ranks - 1) / ranks * bytes;
}

// Finds links, and remembers what it measured: settings that differ in the link alone are calibrated once.
class LinkResolver {
 public:
  LinkResolver(const Experiment& experiment, const Backend& backend, Reporter& reporter)
      : experiment_(experiment), backend_(backend), reporter_(reporter) {}

  ResolvedLink resolve(std::size_t index) {
    const Setting& setting = experiment_.scenario.settings[index];
    if (setting.cluster) {
      return {{}, "cluster " + setting.cluster->name, {}};
    }
    const LinkRequest& wanted = setting.link;
    if (experiment_.placement.over_processes()) {
      return {{}, "network", {}};
    }
    if (!wanted.all_reduce_share_of_compute) {
      const bool emulated = wanted.link.bandwidth_bits_per_s > 0;
      return {wanted.link, !wanted.preset.empty() ? "preset " + wanted.preset : emulated ? "given" : "none", {}};
    }
    // One link for all runs of the setting.
    const PreparedRun* run = calibration_run(experiment_, index);
    if (run == nullptr) {
      reporter_.warn("every run has one rank: there is no link to calibrate");
      return {{0, wanted.link.latency_s}, "none", {}};
    }
    const double compute_time_s = compute_time(*run);
    ResolvedLink link{wanted.link, "calibrated", compute_time_s};
    link.link.bandwidth_bits_per_s =
        8 * all_reduce_bytes(run->plan(), setting.precision) / (*wanted.all_reduce_share_of_compute * compute_time_s);
    return link;
  }

 private:
  // Without partition, so that nothing has to be sent for the computation to be right.
  Schedule schedule_of_compute(const PreparedRun& run) const {
    if (run.plan().zero_stage == 0) {
      return run.schedule;
    }
    const Setting& setting = experiment_.setting_of(run);
    PlanRequest request = run.request.plan;
    request.zero_stage = 0;
    request.prefetch_layers.reset();
    request.resident_layers.reset();
    request.keep_full_gradient = false;
    const Method& method = backend_.method_named(request.method);
    return backend_.build_schedule(
        method, backend_.resolve_plan(method, setting.model, setting.batch, request, run.plan().update_after_norm));
  }

  // A step's compute time with nothing sent: the median, over a few steps, of the slowest of all ranks at once.
  double compute_time(const PreparedRun& run) {
    constexpr std::int64_t kWarmup = 1, kMeasured = 3;
    const Setting& setting = experiment_.setting_of(run);
    const ModelShape& model = setting.model;
    const std::string key =
        fmt::format("{} {} {} {} {} {} {} {} {}", plan_as_json(run.plan()).dump(), model.layers, model.hidden,
                    model.heads, model.sequence, model.vocabulary, name_of(setting.precision.compute),
                    static_cast<int>(setting.optimizer.kind), experiment_.data_sha256[run.setting]);
    if (const auto known = compute_times_.find(key); known != compute_times_.end()) {
      return known->second;
    }
    reporter_.note("calibrating the link: a few steps of compute alone");
    TrainRequest request = train_request(experiment_, run, {});
    request.schedule = schedule_of_compute(run);
    request.communication = false;
    request.precision.loss_scale = 1;  // so that no step is skipped
    request.dump.reset();
    request.disturbances.clear();
    request.warmup_steps = kWarmup;
    request.measured_steps = kMeasured;
    const TrainOutcome outcome = backend_.train(request, [](std::int64_t, const StepRecord&) {});
    const double time =
        median(measure(std::span(outcome.steps).subspan(kWarmup), tokens_per_step(run.plan())).step_time_s);
    LAMINA_CHECK(time > 0, "a step of compute took {} s", time);
    return compute_times_[key] = time;
  }

  const Experiment& experiment_;
  const Backend& backend_;
  Reporter& reporter_;
  std::map<std::string, double> compute_times_;
};

// ---- the runs ----------------------------------------------------------------------------------------------------

class Runner {
 public:
  Runner(const Experiment& experiment, const Backend& backend, const RunOptions& options, Reporter& reporter,
         MpiTransport* transport)
      : experiment_(experiment),
        backend_(backend),
        options_(options),
        reporter_(reporter),
        transport_(transport),
        links_(experiment, backend, reporter),
        file_(options.out + "/result.json", options.force ? Existing::replace : Existing::refuse),
        result_(begin_result(experiment, options.arguments, backend.blas_info())) {}

  ~Runner() {
    if (transport_ != nullptr) {
      transport_->on_failure({});
    }
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  ExitCode run() {
    file_.save(result_);
    if (options_.force) {  // a trace of what the former result was about
      std::error_code ignored;
      std::filesystem::remove(options_.out + "/trace.json", ignored);
    }
    if (transport_ != nullptr) {
      transport_->on_failure([this](const std::string& reason) { job_fails(reason); });
    }
    reporter_.begin(result_);
    for (std::size_t setting = 0; setting < experiment_.scenario.settings.size() && !job_failed_; ++setting) {
      run_setting(setting);
    }
    const std::lock_guard lock(result_mutex_);
    result_["expectations"] = evaluate_expectations(experiment_.scenario, result_["runs"]);
    result_["ended"] = utc_now();
    file_.save(result_);
    const ExitCode code = judge();
    if (reporter_.table_lost()) {
      throw Error(fmt::format("the table cannot be written; the result is in {}", file_.path()));
    }
    return code;
  }

 private:
  // A job of several processes ends soon after a rank has failed, whatever this thread is in the middle of.
  void job_fails(const std::string& reason) {
    const std::lock_guard lock(result_mutex_);
    job_failed_ = true;
    if (running_) {
      result_["runs"][*running_]["reason"] = reason;
    }
    result_["ended"] = utc_now();
    file_.save(result_);
  }

  void put_entry(std::size_t index, Json entry, std::optional<std::size_t> running) {
    const std::lock_guard lock(result_mutex_);
    result_["runs"][index] = std::move(entry);
    running_ = running;
    file_.save(result_);
  }

  void run_setting(std::size_t setting) {
    ResolvedLink link;
    std::string no_link;
    try {
      link = links_.resolve(setting);
      reporter_.calibrated(link);
      if (experiment_.scenario.settings.size() == 1) {
        record_link(result_, link);
      }
    } catch (const std::exception& error) {
      no_link = fmt::format("the calibration of its link failed: {}", error.what());
      reporter_.warn(no_link);
    }
    for (std::size_t index = 0; index < experiment_.runs.size(); ++index) {
      const PreparedRun& run = experiment_.runs[index];
      if (run.setting == setting && !job_failed_) {
        const std::string& obstacle = run.not_started.empty() ? no_link : run.not_started;
        put_entry(index,
                  obstacle.empty() ? train_run(index, link) : entry_not_run(experiment_, run, "skipped", obstacle), {});
        if (options_.trace) {
          write_trace();
        }
        reporter_.run_ended(result_["runs"][index]);
      }
    }
  }

  // The result does not depend on it.
  void write_trace() {
    try {
      write_whole_file(options_.out + "/trace.json", trace_.text(), Existing::replace);
    } catch (const std::exception& error) {
      reporter_.warn(fmt::format("no trace: {}", error.what()));
    }
  }

  Json train_run(std::size_t index, const ResolvedLink& link) {
    const PreparedRun& run = experiment_.runs[index];
    TrainRequest request = train_request(experiment_, run, link.link);
    const std::int64_t steps = request.warmup_steps + request.measured_steps;
    reporter_.run_begins(run.name, index, experiment_.runs.size());
    put_entry(index, entry_not_run(experiment_, run, "failed", "the program ended while it ran"), index);
    try {
      const auto& cluster = experiment_.setting_of(run).cluster;
      request.trace = options_.trace || !cluster;  // of what is trained, the closed form reads it
      const StepProgress progress = [&](std::int64_t step, const StepRecord& record) {
        reporter_.step_ended(step, steps, record);
      };
      const TrainOutcome outcome = cluster                 ? simulate_run(request, *cluster)
                                   : transport_ == nullptr ? backend_.train(request, progress)
                                                           : backend_.train_on(request, *transport_, progress);
      Json entry = entry_of_run(experiment_, run, link, outcome);
      if (options_.trace) {
        trace_.add_run(run.name, run.schedule, outcome.trace);
      }
      warn_about(entry);
      return entry;
    } catch (const std::exception& error) {
      Json entry = entry_not_run(experiment_, run, "failed", error.what());
      entry["link"] = link_as_json(link);
      return entry;
    }
  }

  void warn_about(const Json& entry) {
    const std::string name = entry["name"];
    const Json& slow = entry["metrics"]["step_time_s"]["slow_rank"];
    if (!slow.is_null()) {
      reporter_.warn(
          fmt::format("run {}: rank {} keeps the others waiting: busy {:.1f} ms a step, the others {:.1f} ms", name,
                      slow["rank"].get<std::int64_t>(), slow["busy_s"].get<double>() * 1e3,
                      slow["others_busy_s"].get<double>() * 1e3));
    }
    if (const auto skipped = entry["metrics"]["skipped_steps"]["measured"].get<std::int64_t>(); skipped > 0) {
      reporter_.warn(
          fmt::format("run {}: {} of the measured steps updated nothing, their gradients overflowed", name, skipped));
    }
    if (!entry["metrics"]["traffic_bytes"]["same_every_step"].get<bool>()) {
      reporter_.warn(fmt::format("run {}: steps differ in the bytes they sent", name));
    }
  }

  ExitCode judge() {
    bool met = true;
    for (const Json& entry : result_["expectations"]) {
      reporter_.expectation(entry);
      met = met && entry["met"].get<bool>();
    }
    const bool ran = std::all_of(result_["runs"].begin(), result_["runs"].end(),
                                 [](const Json& run) { return run["status"] == "ok"; });
    return !ran ? kFailed : met ? kFine : kNotMet;
  }

  const Experiment& experiment_;
  const Backend& backend_;
  const RunOptions& options_;
  Reporter& reporter_;
  MpiTransport* transport_;
  LinkResolver links_;
  ResultFile file_;
  ChromeTrace trace_;
  std::mutex result_mutex_;  // guards what follows, and saving it
  Json result_;
  std::optional<std::size_t> running_;  // the run under way
  std::atomic<bool> job_failed_ = false;
};

}  // namespace

ResolvedLink resolve_link(const Experiment& experiment, std::size_t setting, const Backend& backend,
                          Reporter& reporter) {
  return LinkResolver(experiment, backend, reporter).resolve(setting);
}

// Nothing is overwritten by surprise, and nothing fails for want of a folder after hours of training.
void make_room(const Experiment& experiment, const RunOptions& options) {
  const std::vector<Output> outputs = outputs_of(experiment, options);
  check_different(experiment, outputs);
  for (const Output& output : outputs) {
    check_can_be_named(output, options.force);
  }
  for (const Output& output : outputs) {
    make_folder(output);
  }
}

ExitCode run_experiment(const Experiment& experiment, const Backend& backend, const RunOptions& options,
                        Reporter& reporter, MpiTransport* transport) {
  make_room(experiment, options);
  warn_about(experiment, reporter);
  return Runner(experiment, backend, options, reporter, transport).run();
}

void follow_experiment(const Experiment& experiment, const Backend& backend, MpiTransport& transport) {
  for (const PreparedRun& run : experiment.runs) {
    if (run.not_started.empty() && transport.rank() < run.ranks()) {
      TrainRequest request = train_request(experiment, run, {});
      request.trace = true;  // as on rank 0, whose closed form reads it
      backend.train_on(request, transport, {});
    }
  }
}

}  // namespace lamina
