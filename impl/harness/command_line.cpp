#include "impl/harness/command_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>

#include "impl/base/error.h"
#include "impl/base/files.h"
#include "impl/base/nearest.h"
#include "impl/harness/build_info.h"
#include "impl/harness/calibrate.h"
#include "impl/harness/context.h"
#include "impl/harness/keys.h"
#include "impl/harness/link_command.h"
#include "impl/harness/links.h"
#include "impl/harness/planning.h"
#include "impl/harness/prepare.h"
#include "impl/harness/processes.h"
#include "impl/harness/report.h"
#include "impl/harness/runner.h"
#include "impl/schedule/text.h"
#include "impl/simulator/lanes.h"

namespace lamina {
namespace {

constexpr const char* kExamples = R"(Examples:
  lamina run scenarios/accumulation-ethernet.json
  lamina run scenario.json --set steps.measured=20 --set transport.link.preset=ethernet-10g --trace
  lamina check scenario.json
  lamina show scenario.json --run layered
  lamina plan scenarios/plan-trillion.json --set search.max_gpus=10000 --emit megatron
  lamina paper --figure frontier --out out/paper
  lamina link --ranks 2 --preset ethernet-10g --max-bytes 16777216
  mpirun -n 4 lamina link --json link.json
  lamina calibrate scenarios/accumulation-ethernet.json --cluster here.json

Exit codes: 0 fine, 1 an expectation was not met, 2 bad usage or scenario (nothing started), 3 a run failed.)";

struct Options {
  std::string scenario;
  std::vector<std::string> set;
  std::string out;
  bool trace = false;
  bool force = false;
  bool support = false;
  bool schema = false;
  bool keys = false;
  std::string run;
  bool text = false;
  PlanOptions plan;
  PaperCommandOptions paper;
  bool no_pictures = false;
  LinkCommandOptions link;
  std::string cluster;
};

Scenario read(const Options& options) {
  if (options.scenario.empty()) {
    throw UsageError("name a scenario file");
  }
  std::vector<Override> overrides;
  for (const std::string& text : options.set) {
    overrides.push_back(parse_override(text));
  }
  return read_scenario(options.scenario, overrides);
}

int command_run(const Options& options, const std::vector<std::string>& arguments, const Backend& backend,
                std::FILE* output, std::FILE* errors) {
  RunOptions run;
  run.out = options.out;
  run.force = options.force;
  run.trace = options.trace;
  run.arguments = {"lamina"};
  run.arguments.insert(run.arguments.end(), arguments.begin(), arguments.end());
  const auto read_it = [&] { return read(options); };
  if (launched_with_others()) {
    return run_over_processes(read_it, run, backend, output, errors);
  }
  const Scenario scenario = read_it();
  if (wants_processes(scenario)) {
    return run_over_processes(read_it, run, backend, output, errors);
  }
  const Experiment experiment = prepare(scenario, backend);
  if (run.out.empty()) {
    run.out = "out/" + scenario.name;
  }
  Reporter reporter(output, errors);
  return run_experiment(experiment, backend, run, reporter);
}

int command_check(const Options& options, const Backend& backend, std::FILE* output) {
  if (options.schema) {
    print(output, scenario_schema().dump(2) + "\n");
  } else if (options.keys) {
    print(output, keys_as_markdown());
  } else if (options.support) {
    print(output, support_table(backend));
  } else {
    const Scenario scenario = read(options);
    const Json described = scenario.executor == Executor::search ? describe_search(scenario)
                                                                 : describe_experiment(prepare(scenario, backend));
    print(output, described.dump(2) + "\n");
  }
  return kFine;
}

int terminal_columns(std::FILE* output) {
  constexpr int kOnPaper = 120;
  winsize size{};
  return ioctl(fileno(output), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kOnPaper;
}

int command_show(const Options& options, const Backend& backend, std::FILE* output) {
  const Experiment experiment = prepare(read(options), backend);
  std::vector<std::string_view> names;
  bool shown = false;
  for (const PreparedRun& run : experiment.runs) {
    names.push_back(run.name);
    if (!options.run.empty() && options.run != run.name && options.run != run.request.name) {
      continue;
    }
    shown = true;
    print(output, fmt::format("# {}\n{}\n", run.name,
                              options.text ? to_text(run.schedule) : to_lanes(run.schedule, terminal_columns(output))));
  }
  if (!shown) {
    throw UsageError(
        fmt::format("--run {}: no run is named so; did you mean {}?", options.run, nearest_name(options.run, names)));
  }
  return kFine;
}

int command_calibrate(const Options& options, const Backend& backend, std::FILE* output, std::FILE* errors) {
  const Experiment experiment = prepare(read(options), backend);
  if (!options.cluster.empty() && !options.force && std::filesystem::exists(options.cluster)) {
    throw UsageError(fmt::format("{} exists; --force replaces it", options.cluster));
  }
  Reporter reporter(output, errors);
  const Calibration calibration = calibrate(experiment, backend, reporter);
  print(output, calibration_table(calibration));
  if (!options.cluster.empty()) {
    const std::string name = std::filesystem::path(options.cluster).stem();
    const Json document = cluster_json(calibration, experiment.scenario.settings.front().model, name);
    write_whole_file(options.cluster, document.dump(2) + "\n", options.force ? Existing::replace : Existing::refuse);
  }
  return kFine;
}

std::string feature(const char* version) { return *version == '\0' ? "no" : fmt::format("yes ({})", version); }

int command_info(const Backend& backend, std::FILE* output) {
  const BlasInfo blas = backend.blas_info();
  std::string text = fmt::format("lamina {}\ncompiler   {}, {}\n", version_text(), build::kCompiler, build::kType);
  if (*build::kSanitizers != '\0') {
    text += fmt::format("sanitizers {}\n", build::kSanitizers);
  }
  text += fmt::format("MPI        {}\nCUDA       {}\nNCCL       {}\n", feature(build::kMpi), feature(build::kCuda),
                      feature(build::kNccl));
  text +=
      fmt::format("BLAS       {}, core {}\ncores      {}\n\nmethods\n", blas.name, blas.core, usable_cores().size());
  for (const Method* method : backend.methods) {
    text += fmt::format("  {:<24} {}\n", method->name, method->description);
  }
  text += "\nlinks                      bit/s    latency\n";
  for (const LinkPreset& link : link_presets()) {
    text += fmt::format("  {:<20} {:>9.3g} {:>8.2g} s   {}\n", link.name, link.bandwidth_bits_per_s, link.latency_s,
                        link.source);
  }
  print(output, text);
  return kFine;
}

void add_scenario(CLI::App& command, Options& options, bool required) {
  CLI::Option* scenario = command.add_option("SCENARIO", options.scenario, "Scenario file (JSON)");
  if (required) {
    scenario->required();
  }
  command
      .add_option("--set", options.set,
                  "Set a key before the scenario is checked: path=value, null takes the key out; may be repeated")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

// The parser itself only says that some command is missing.
// Like CLI::Range, which lets what is not a number pass.
CLI::Validator between(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        double value = 0;
        const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
        return inside ? std::string() : fmt::format("{} is not a number from {} to {}", text, low, high);
      },
      fmt::format("FLOAT in [{} - {}]", low, high));
}

void check_command(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 8> kCommands{"run",   "check", "show",      "plan",
                                                      "paper", "link",  "calibrate", "info"};
  const bool named = !arguments.empty() && !arguments.front().starts_with('-');
  if (named && std::find(kCommands.begin(), kCommands.end(), arguments.front()) == kCommands.end()) {
    throw UsageError(fmt::format("no command is named {}; did you mean {}? (lamina --help shows the usage)",
                                 arguments.front(), nearest_name(arguments.front(), kCommands)));
  }
}

int dispatch(const std::vector<std::string>& arguments, const Backend& backend, std::FILE* output, std::FILE* errors) {
  Options options;
  CLI::App app("Trains, replays and simulates ways of splitting a transformer's training over ranks.", "lamina");
  app.footer(kExamples);
  app.require_subcommand(1);
  app.set_version_flag("--version", "lamina " + version_text());

  CLI::App* run = app.add_subcommand("run", "Run a scenario, measure, write result.json, print a table");
  add_scenario(*run, options, true);
  run->add_option("--out", options.out, "Folder of the result (default: out/NAME)");
  run->add_flag("--trace", options.trace, "Write trace.json beside it, each run's last 3 steps, for ui.perfetto.dev");
  run->add_flag("--force", options.force, "Replace files that exist");

  CLI::App* check = app.add_subcommand("check", "Say what a scenario resolves to, or what is wrong with it");
  add_scenario(*check, options, false);
  check->add_flag("--support", options.support, "Print which combinations work");
  check->add_flag("--schema", options.schema, "Print the JSON Schema of scenarios");
  check->add_flag("--keys", options.keys, "Print the keys of scenarios as a Markdown table");

  CLI::App* show = app.add_subcommand("show", "Print the schedules of a scenario as lanes");
  add_scenario(*show, options, true);
  show->add_option("--run", options.run, "Only this run");
  show->add_flag("--text", options.text, "As text that reads back, op by op");

  CLI::App* plan = app.add_subcommand("plan", "Search the fastest plans of a cluster for a model");
  add_scenario(*plan, options, true);
  plan->add_option("--emit", options.plan.emit, "Print the fastest plan for another system: megatron or deepspeed");
  plan->add_option("--out", options.plan.out, "Folder for plan.json");
  plan->add_option("--confirm", options.plan.confirm, "Simulate so many of each list's best plans (default: 3)")
      ->check(CLI::Range(0, 1000));
  plan->add_flag("--force", options.plan.force, "Replace files that exist");

  CLI::App* paper = app.add_subcommand("paper", "Make the paper's figures: JSON, CSV, PNG and PDF");
  PaperCommandOptions& figures = options.paper;
  paper->add_option("--figure", figures.figure, "Only this one");
  paper->add_option("--out", figures.out, "Folder of the figures")->required();
  paper->add_option("--clusters", figures.clusters, "Folder of the cluster files (default: the project's)");
  paper->add_option("--measurements", figures.measurements,
                    "Step times measured elsewhere, for figure published (default: the project's)");
  paper->add_option("--family", figures.family, "x of the model X_x (default: 160, a trillion parameters)");
  paper->add_option("--batch-law", figures.batch_law, "gpt3 or kaplan")->check(CLI::IsMember({"gpt3", "kaplan"}));
  paper->add_option("--step-rule", figures.step_rule, "same_tokens or same_loss")
      ->check(CLI::IsMember({"same_tokens", "same_loss"}));
  paper->add_option("--rates", figures.rates, "nominal or reached")->check(CLI::IsMember({"nominal", "reached"}));
  paper->add_option("--max-gpus", figures.max_gpus, "Largest number of GPUs")->check(CLI::Range(1, 1'000'000));
  paper->add_flag("--no-pictures", options.no_pictures, "JSON and CSV alone");
  paper->add_flag("--force", figures.force, "Replace files that exist");

  CLI::App* link = app.add_subcommand(
      "link", "Measure latency and bandwidth between ranks: threads, or an MPI launcher's processes");
  LinkCommandOptions& measured = options.link;
  link->add_option("--ranks", measured.ranks, "Threads (default: 2)")->check(CLI::Range(1, 1024));
  link->add_option("--bandwidth-bits-per-s", measured.link.bandwidth_bits_per_s, "Emulate a link; 0: none")
      ->check(between(0, 1e18));
  link->add_option("--latency-s", measured.link.latency_s, "Its latency")->check(between(0, 10));
  link->add_option("--preset", measured.preset, "Emulate a link by name (`lamina info` lists them)")
      ->excludes("--bandwidth-bits-per-s")
      ->excludes("--latency-s");
  link->add_option("--min-bytes", measured.measure.least_bytes, "Smallest size (default: 8)");
  link->add_option("--max-bytes", measured.measure.most_bytes, "Largest size (default: 268435456)")
      ->check(CLI::Range(std::int64_t{4}, std::int64_t{1} << 34));
  link->add_option("--seconds", measured.measure.seconds_a_size, "Time for each size (default: 0.2)")
      ->check(between(0.001, 3600));
  link->add_option_function<std::string>(
          "--collectives",
          [&measured](const std::string& name) {
            const CollectiveBackend library = CollectiveBackend::library;
            measured.measure.collectives = name == name_of(library) ? library : CollectiveBackend::ring;
          },
          "Whose are measured: ring (lamina's) or library (MPI's)")
      ->check(CLI::IsMember(
          {std::string(name_of(CollectiveBackend::ring)), std::string(name_of(CollectiveBackend::library))}));
  link->add_option("--cluster", measured.cluster, "Cluster file whose network link becomes what is measured");
  link->add_option("--json", measured.json, "Write the measurement as JSON");
  link->add_flag("--force", measured.force, "Change the cluster file; replace files that exist");

  CLI::App* calibration = app.add_subcommand("calibrate", "Time each kind of op of a scenario's model on this machine");
  add_scenario(*calibration, options, true);
  calibration->add_option("--cluster", options.cluster, "Write a cluster file of this machine");
  calibration->add_flag("--force", options.force, "Replace files that exist");

  CLI::App* info = app.add_subcommand("info", "Print version, features, methods and links");

  check_command(arguments);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    print(output, chosen.empty() ? app.help() : chosen.front()->help(app.get_name()));
    return kFine;
  } catch (const CLI::CallForVersion& version) {
    print(output, std::string(version.what()) + "\n");
    return kFine;
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{} (lamina --help shows the usage)", error.what()));
  }
  if (run->parsed()) {
    return command_run(options, arguments, backend, output, errors);
  }
  if (check->parsed()) {
    return command_check(options, backend, output);
  }
  if (show->parsed()) {
    return command_show(options, backend, output);
  }
  if (plan->parsed()) {
    return plan_command(read(options), options.plan, output, errors);
  }
  if (paper->parsed()) {
    options.paper.pictures = !options.no_pictures;
    return paper_figures_command(options.paper, output, errors);
  }
  if (link->parsed()) {
    return link_command(options.link, backend, output, errors);
  }
  if (calibration->parsed()) {
    return command_calibrate(options, backend, output, errors);
  }
  LAMINA_CHECK(info->parsed(), "{} commands parsed", app.get_subcommands().size());
  return command_info(backend, output);
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int run_command_line(const std::vector<std::string>& arguments, const Backend& backend, std::FILE* output,
                     std::FILE* errors) {
  const auto complain = [&](const char* what) { fmt::print(errors, "lamina: {}\n", one_line(what)); };
  try {
    return dispatch(arguments, backend, output, errors);
  } catch (const UsageError& error) {
    complain(error.what());
    return kUsage;
  } catch (const std::bad_alloc&) {
    complain("out of memory");
    return kFailed;
  } catch (const std::exception& error) {
    complain(error.what());
    return kFailed;
  }
}

}  // namespace lamina
