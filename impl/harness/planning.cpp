#include "impl/harness/planning.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>

#include "impl/analysis/emit.h"
#include "impl/analysis/paper.h"
#include "impl/analysis/plan_report.h"
#include "impl/base/error.h"
#include "impl/base/files.h"
#include "impl/base/nearest.h"
#include "impl/harness/build_info.h"
#include "impl/harness/confirm.h"

extern char** environ;

namespace lamina {
namespace {

std::atomic<bool> interrupted{false};

// While it lives, an interrupt sets `interrupted` instead of ending the program.
class CatchInterrupt {
 public:
  CatchInterrupt() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &before_);
  }
  ~CatchInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

 private:
  struct sigaction before_ {};
};

void refuse_existing(const std::filesystem::path& file, bool force) {
  if (!force && std::filesystem::exists(file)) {
    throw UsageError(fmt::format("{} exists; --force replaces it", file.string()));
  }
}

analysis::RateKind rate_kind(const std::string& name) {
  return name == "nominal" ? analysis::RateKind::nominal : analysis::RateKind::reached;
}

// What reports ask about a plan's schedule. Each plan is simulated once. After an interrupt none is any more, but what
// is known already is told.
analysis::Confirm confirming(std::FILE* errors) {
  const auto confirmer = std::make_shared<Confirmer>();
  const bool live = isatty(fileno(errors)) == 1;
  return [confirmer, live, errors](const analysis::PlanCost& cost, const ModelShape& model) {
    if (interrupted && confirmer->known(cost, model) == nullptr) {
      return analysis::Confirmation{.reason = "stopped before it was simulated"};
    }
    if (live) {
      fmt::print(errors, "\r\033[K{} plans judged by their schedules", confirmer->judged());
      std::fflush(errors);
    }
    const analysis::Confirmation confirmation = (*confirmer)(cost, model);
    if (live) {
      print(errors, "\r\033[K");
    }
    return confirmation;
  };
}

// Draws with the Python that has matplotlib. What it says goes to our stderr; false when it failed.
bool draw(const std::string& data, const std::string& figure) {
  const std::string source = build::kSource;
  // No name becomes part of the shell's text: all are arguments.
  constexpr const char* kScript =
      R"sh(python="$(bash "$1/scripts/python.sh")" && exec "$python" -B "$1/plots/paper.py" "$2" ${3:+--figure "$3"} >&2)sh";
  std::vector<std::string> words{"sh", "-c", kScript, "sh", source, data, figure};
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, "sh", nullptr, nullptr, arguments.data(), environ) != 0) {
    return false;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return false;
    }
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

analysis::SearchOptions search_options_of(const Setting& setting) {
  const Json& keys = setting.search;
  const Cluster& cluster = setting.cluster.value();
  const analysis::RateKind rates = rate_kind(keys["rates"]);
  analysis::SearchOptions options;
  options.setting.model = setting.model;
  options.setting.rates =
      analysis::rates_of(cluster, keys["precision"].get<std::string>(), setting.model.hidden, rates);
  options.setting.critical_batch_tokens = analysis::critical_batch_tokens(
      analysis::batch_law_named(keys["batch_law"].get<std::string>()), analysis::total_parameters(setting.model));
  options.setting.step_rule = analysis::step_rule_named(keys["step_rule"].get<std::string>());
  options.setting.offload = {.state = analysis::storage_named(keys["state_storage"].get<std::string>()),
                             .checkpoints = analysis::storage_named(keys["checkpoint_storage"].get<std::string>()),
                             .rates = analysis::storage_rates_of(cluster, rates)};
  options.limits = {.devices = keys["max_gpus"],
                    .memory_bytes = keys.value("memory_bytes", cluster.device.memory_bytes.value),
                    .node_size = std::max<std::int64_t>(1, std::llround(cluster.node_size.value))};
  options.keep_best = keys["keep_best"];
  return options;
}

namespace {

// The one search that a scenario asks for.
analysis::SearchOptions search_of(const Scenario& scenario) {
  if (scenario.executor != Executor::search) {
    throw UsageError(fmt::format("{}: executor is not search: lamina run runs it", scenario.file));
  }
  if (scenario.settings.size() != 1) {
    throw UsageError(fmt::format("{}: sweep is not for plan searches; --set varies one", scenario.file));
  }
  return search_options_of(scenario.settings.front());
}

}  // namespace

Json describe_search(const Scenario& scenario) {
  const analysis::SearchOptions options = search_of(scenario);
  return {{"scenario", scenario.document},
          {"search",
           {{"critical_batch_sequences", options.setting.critical_batch()},
            {"most_gpus", options.limits.devices},
            {"node_size", options.limits.node_size},
            {"memory_bytes", options.limits.memory_bytes}}}};
}

ExitCode plan_command(const Scenario& scenario, const PlanOptions& options, std::FILE* output, std::FILE* errors) {
  analysis::SearchOptions wanted = search_of(scenario);
  const std::filesystem::path file = std::filesystem::path(options.out) / "plan.json";
  if (!options.out.empty()) {
    refuse_existing(file, options.force);
  }
  std::optional<analysis::TargetSystem> system;
  if (!options.emit.empty()) {
    system = analysis::target_system_named(options.emit);
  }
  const CatchInterrupt catching;
  std::stop_source stop;
  wanted.stop = stop.get_token();
  const bool live = isatty(fileno(errors)) == 1;
  wanted.progress = [&](double share, const analysis::Counts& counts) {
    if (interrupted) {
      stop.request_stop();
    }
    if (live) {
      fmt::print(errors, "\r\033[Ksearched {:.0f} %, {} plans", 100 * share, counts.evaluated);
      std::fflush(errors);
    }
  };
  const analysis::SearchResult result = analysis::search(wanted);
  if (live) {
    print(errors, "\r\033[K");
  }
  const analysis::PlanCost fastest = analysis::fastest_plan(result, wanted);  // throws when there is none
  const analysis::Confirming confirmed{static_cast<std::size_t>(options.confirm), confirming(errors)};
  if (system) {
    print(output, analysis::to_text(analysis::emit(*system, fastest.plan, wanted.setting.model)));
  } else {
    print(output,
          fmt::format("# {}: {} on {}\n", scenario.name, "fastest plans", scenario.settings.front().cluster->name) +
              analysis::plan_table(result, wanted, confirmed));
  }
  if (!options.out.empty()) {
    std::filesystem::create_directories(options.out);
    Json document = analysis::plan_json(result, wanted, confirmed);
    document["scenario"] = scenario.document;
    write_whole_file(file.string(), document.dump(2) + "\n", options.force ? Existing::replace : Existing::refuse);
  }
  return kFine;
}

ExitCode paper_figures_command(const PaperCommandOptions& options, std::FILE* output, std::FILE* errors) {
  const std::vector<std::string>& names = analysis::paper_figure_names();
  if (!options.figure.empty() && std::find(names.begin(), names.end(), options.figure) == names.end()) {
    const std::vector<std::string_view> known(names.begin(), names.end());
    throw UsageError(fmt::format("no figure is named {}; did you mean {}? There are {}", options.figure,
                                 nearest_name(options.figure, known), fmt::join(names, ", ")));
  }
  if (options.out.empty()) {
    throw UsageError("--out names the folder that the figures go to");
  }
  for (const std::string& name : options.figure.empty() ? names : std::vector<std::string>{options.figure}) {
    for (const char* ending : {".json", ".csv", ".png", ".pdf"}) {
      refuse_existing(std::filesystem::path(options.out) / (name + ending), options.force);
    }
  }
  const std::string clusters =
      options.clusters.empty() ? std::string(build::kSource) + "/scenarios/clusters" : options.clusters;
  if (!std::filesystem::is_directory(clusters)) {
    throw UsageError(fmt::format("{}: there is no such folder; --clusters names that of the cluster files", clusters));
  }
  const bool compares = options.figure.empty() || options.figure == "published";
  if (!options.measurements.empty() && !compares) {
    throw UsageError(fmt::format("--measurements is for figure published; this one is {}", options.figure));
  }
  analysis::family_model(options.family);  // throws before anything is made
  analysis::PaperOptions paper;
  paper.clusters = analysis::read_paper_clusters(clusters);
  paper.family = options.family;
  paper.batch_law = analysis::batch_law_named(options.batch_law);
  paper.step_rule = analysis::step_rule_named(options.step_rule);
  paper.rates = rate_kind(options.rates);
  paper.max_gpus = options.max_gpus;
  if (compares) {
    constexpr const char* kShipped = "scenarios/published/measurements.json";
    paper.published = analysis::read_published(
        options.measurements.empty() ? std::string(build::kSource) + "/" + kShipped : options.measurements);
    paper.published_clusters = analysis::read_published_clusters(clusters);
    paper.published_file = options.measurements.empty() ? kShipped : options.measurements;
  }
  paper.confirm = confirming(errors);
  const std::string text = analysis::paper_command(options.figure, options.out, paper, [&](std::string_view name) {
    print(errors, fmt::format("figure {}\n", name));
  });
  print(output, text);
  if (options.pictures) {
    print(errors, "drawing\n");
    if (!draw(options.out, options.figure)) {
      throw Error(
          "the pictures could not be drawn (see above); JSON and CSV are there, --no-pictures makes them alone");
    }
  }
  print(output, fmt::format("# written to {}\n", options.out));
  return kFine;
}

}  // namespace lamina
