// Running an experiment over a fake engine, and what is in the files afterwards.
#include "impl/harness/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <locale>
#include <set>
#include <sstream>

#include "impl/base/files.h"
#include "impl/harness/chrome_trace.h"
#include "impl/harness/expectations.h"
#include "impl/harness/runner.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

using fakes::small_scenario;
using testing::HasSubstr;

struct Ran {
  ExitCode code = kFine;
  Json result;
  std::string table;
  std::string progress;
};

std::string text_of(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = 0; (c = std::fgetc(file)) != EOF;) {
    text += static_cast<char>(c);
  }
  return text;
}

Ran run(const Json& document, const Backend& backend, bool trace = false, bool force = false) {
  const Experiment experiment = prepare(fakes::read(document), backend);
  const std::string out = experiment.scenario.file + ".out";
  std::FILE* table = std::tmpfile();
  std::FILE* progress = std::tmpfile();
  Ran ran;
  {
    Reporter reporter(table, progress);
    ran.code = run_experiment(experiment, backend, {out, force, trace, {"lamina", "run"}}, reporter);
  }
  ran.result = Json::parse(fakes::read_file(out + "/result.json"));
  ran.table = text_of(table);
  ran.progress = text_of(progress);
  std::fclose(table);
  std::fclose(progress);
  return ran;
}

Json with_expectations(const char* expectations) {
  Json document = small_scenario();
  document["expect"] = Json::parse(expectations);
  return document;
}

// An engine in which a run of this method does something else.
Backend backend_where(std::string method, std::function<TrainOutcome(const TrainRequest&)> does) {
  Backend backend = fakes::backend();
  backend.train = [method = std::move(method), does = std::move(does)](const TrainRequest& request,
                                                                       const StepProgress& progress) {
    return request.schedule.plan.method == method ? does(request) : fakes::train(request, progress);
  };
  return backend;
}

// ---- the result file ---------------------------------------------------------------------------------------------

TEST(Result, HoldsWhatTheDesignSays) {
  const Ran ran = run(small_scenario(), fakes::backend());
  const Json& result = ran.result;
  EXPECT_EQ(ran.code, kFine);
  EXPECT_EQ(result["schema_version"], 1);
  EXPECT_EQ(result["argv"], Json::parse(R"(["lamina", "run"])"));
  EXPECT_EQ(result["scenario_sha256"].get<std::string>().size(), 64);
  EXPECT_EQ(result["data_sha256"].get<std::string>().size(), 64);
  for (const char* key : {"revision", "dirty", "compiler", "type", "mpi", "cuda"}) {
    EXPECT_TRUE(result["context"]["build"].contains(key)) << key;
  }
  EXPECT_EQ(result["context"]["ranks"].size(), 2);
  EXPECT_EQ(result["context"]["ranks"][1]["network"], "threads");
  EXPECT_EQ(result["scenario"]["seed"], 1);  // a default, resolved
  ASSERT_EQ(result["runs"].size(), 2);

  const Json& entry = result["runs"][1];
  EXPECT_EQ(entry["name"], "layered");
  EXPECT_EQ(entry["status"], "ok");
  EXPECT_TRUE(entry["reason"].is_null());
  EXPECT_EQ(entry["plan"]["micro_batches"], 4);
  EXPECT_EQ(entry["built"]["layers"], 3);
  const Json& metrics = entry["metrics"];
  EXPECT_EQ(metrics["step_time_s"]["samples"], Json::parse("[0.2, 0.2, 0.2]"));  // without the warm-up
  EXPECT_EQ(metrics["step_time_s"]["direction"], "lower");
  EXPECT_EQ(metrics["step_time_s"]["per_rank_median"], Json::parse("[0.2, 0.2]"));
  EXPECT_EQ(metrics["tokens_per_s"]["direction"], "higher");
  EXPECT_EQ(metrics["tokens_per_s"]["median"], 320);  // 8 sequences of 8 tokens in 0.2 s; 100 targets are counted
  EXPECT_DOUBLE_EQ(metrics["exposed_communication_s"]["median"].get<double>(), 0.05);
  EXPECT_EQ(metrics["loss"], Json::parse("[5.0, 4.0, 3.0, 2.0]"));  // with the warm-up
  const Json& sent = metrics["traffic_bytes"]["per_rank"][0];
  EXPECT_EQ(sent["data"]["reduce"], 240);
  EXPECT_EQ(sent["data"]["gather"], 0);
  EXPECT_EQ(sent["data"]["units"]["layers"]["reduce"], 200);
  EXPECT_EQ(sent["data"]["units"]["head"]["reduce"], 30);
  EXPECT_EQ(sent["control"], 16);
  EXPECT_TRUE(metrics["traffic_bytes"]["wire"].is_null());
  EXPECT_EQ(metrics["peak_memory_bytes"]["per_rank"][1]["total"], 28);
  EXPECT_EQ(metrics["peak_memory_bytes"]["resident_set"], Json::parse("[99]"));
  EXPECT_FALSE(result["ended"].is_null());
}

// 3 layers of 12·4² + 13·4 = 244, embedding (16 + 8)·4 = 96, head (16 + 2)·4 = 72 parameters; all-reduce over two ranks
// sends each once, in 4 bytes.
TEST(Result, PredictsTrafficAndMemoryBesideTheCounted) {
  const Ran ran = run(small_scenario(), fakes::backend());
  const Json& depth_first = ran.result["runs"][0]["metrics"];
  const Json& layered = ran.result["runs"][1]["metrics"];
  const Json& sent = layered["traffic_bytes"]["predicted"][1]["data"];
  EXPECT_EQ(sent["reduce"], (3 * 244 + 96 + 72) * 4);
  EXPECT_EQ(sent["units"]["layers"]["reduce"], 3 * 244 * 4);
  EXPECT_EQ(sent["gather"], 0);
  const Json& memory = layered["peak_memory_bytes"]["predicted"][0];
  EXPECT_EQ(memory["parameters"], 900 * 4);
  EXPECT_EQ(memory["gradients"], 900 * 4);
  EXPECT_EQ(memory["optimizer"], 0);
  EXPECT_EQ(memory["checkpoints"], 4 * 4 * 8 * 4 * 4);  // 4 micro-batches, 4 boundaries, 8·4 elements of 4 bytes
  EXPECT_EQ(depth_first["peak_memory_bytes"]["predicted"][0]["checkpoints"], 4 * 8 * 4 * 4);
}

TEST(Result, CountsSkippedStepsAndShowsThem) {
  Json document = small_scenario();
  document["precision"]["compute"] = "fp16";
  const Ran ran = run(document, backend_where("layered_accumulation", [](const TrainRequest& request) {
                        EXPECT_TRUE(request.schedule.plan.update_after_norm);
                        EXPECT_EQ(request.precision.compute, RealType::fp16);
                        TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
                        for (std::size_t i = 0; i < 3; ++i) {
                          outcome.steps[i].skipped = i < 2;  // the warm-up and the first one measured
                          outcome.steps[i].loss_scale = 64.0 / static_cast<double>(1 << i);
                        }
                        outcome.steps[3].loss_scale = 16;
                        return outcome;
                      }));
  const Json& metrics = ran.result["runs"][1]["metrics"];
  EXPECT_EQ(metrics["skipped_steps"], Json::parse(R"({"warmup": 1, "measured": 1})"));
  EXPECT_EQ(metrics["loss_scale"], Json::parse("[64.0, 32.0, 16.0, 16.0]"));
  EXPECT_EQ(ran.result["runs"][0]["metrics"]["skipped_steps"], Json::parse(R"({"warmup": 0, "measured": 0})"));
  EXPECT_THAT(ran.table, HasSubstr("# run layered: 1 of 3 measured steps skipped"));
  EXPECT_THAT(ran.table, HasSubstr("loss scale 16 at the end"));
  EXPECT_THAT(ran.progress, HasSubstr("run layered: 1 of the measured steps updated nothing"));
  const Json in_fp32 = run(small_scenario(), fakes::backend(), false, true).result;
  EXPECT_TRUE(in_fp32["runs"][0]["metrics"]["loss_scale"].is_null());
  EXPECT_FALSE(in_fp32["runs"][0]["plan"]["update_after_norm"].get<bool>());
}

TEST(Result, IsRefusedWhereOneExistsUnlessForced) {
  const Json document = small_scenario();
  const Experiment experiment = prepare(fakes::read(document), fakes::backend());
  const std::string out = experiment.scenario.file + ".out";
  std::filesystem::create_directories(out);
  fakes::write_file(out + "/result.json", "precious");
  Reporter reporter(stdout, stderr);
  EXPECT_THROW(run_experiment(experiment, fakes::backend(), {out, false, false, {}}, reporter), UsageError);
  EXPECT_EQ(fakes::read_file(out + "/result.json"), "precious");
  EXPECT_EQ(run_experiment(experiment, fakes::backend(), {out, true, false, {}}, reporter), kFine);
  EXPECT_EQ(Json::parse(fakes::read_file(out + "/result.json"))["runs"].size(), 2);
}

TEST(Result, OfAFailedRunSaysWhyAndTheOthersGoOn) {
  const Ran ran = run(small_scenario(), backend_where("data_parallel", [](const TrainRequest&) -> TrainOutcome {
                        throw Error("rank 1 lost its peer");
                      }));
  EXPECT_EQ(ran.code, kFailed);
  EXPECT_EQ(ran.result["runs"][0]["status"], "failed");
  EXPECT_EQ(ran.result["runs"][0]["reason"], "rank 1 lost its peer");
  EXPECT_FALSE(ran.result["runs"][0].contains("metrics"));
  EXPECT_EQ(ran.result["runs"][1]["status"], "ok");
  EXPECT_THAT(ran.table, HasSubstr("failed: rank 1 lost its peer"));
}

TEST(Result, NeverHoldsWhatIsNotANumber) {
  const Ran ran = run(small_scenario(), backend_where("layered_accumulation", [](const TrainRequest& request) {
                        TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
                        outcome.steps[1].loss = std::nan("");
                        outcome.steps[2].gradient_norm = std::numeric_limits<double>::infinity();
                        outcome.steps[3].rank_time_s = {0, 0};  // tokens a second: infinite
                        return outcome;
                      }));
  const Json& metrics = ran.result["runs"][1]["metrics"];
  EXPECT_EQ(metrics["loss"], Json::parse("[5.0, null, 3.0, 2.0]"));
  EXPECT_THAT(metrics["loss_reason"], HasSubstr("diverged"));
  EXPECT_TRUE(metrics["gradient_norm"][2].is_null());
  EXPECT_TRUE(metrics["tokens_per_s"]["median"].is_null());
  EXPECT_THAT(metrics["tokens_per_s"]["reason"], HasSubstr("not finite"));
}

TEST(Result, AStepWithoutACountedTargetHasNoLoss) {
  Json document = small_scenario();
  document["expect"] = Json::parse(R"([{"metric": "loss", "of": "layered", "equal_to": "layered", "within": 1}])");
  const Ran ran = run(document, backend_where("layered_accumulation", [](const TrainRequest& request) {
                        TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
                        outcome.steps[2].loss = std::nan("");
                        outcome.steps[2].counted_targets = 0;
                        return outcome;
                      }));
  const Json& metrics = ran.result["runs"][1]["metrics"];
  EXPECT_EQ(metrics["loss"], Json::parse("[5.0, 4.0, null, 2.0]"));
  EXPECT_EQ(metrics["loss_reason"], "null where no target is counted");
  EXPECT_EQ(ran.code, kNotMet);
  EXPECT_EQ(ran.result["expectations"][0]["met"], false);
}

// German numbers for the C library, made from the source that systems with localedef have. False where there is none.
bool set_german_locale() {
  const std::string folder = std::filesystem::absolute("locales").string();
  std::filesystem::create_directories(folder);
  const std::string made = fmt::format("localedef -i de_DE -f UTF-8 '{0}/de_DE.UTF-8' > '{0}/log' 2>&1", folder);
  if (std::system(made.c_str()) != 0) {
    return false;
  }
  setenv("LOCPATH", folder.c_str(), 1);
  const bool set = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  unsetenv("LOCPATH");
  return set && std::string_view(std::localeconv()->decimal_point) == ",";
}

// The heading and every run's row, whatever the names: columns end at the same places.
TEST(Result, TableStandsInColumns) {
  for (const char* name : {"x", "a name that is much longer than all other columns"}) {
    Json document = small_scenario();
    document["runs"][0]["name"] = name;
    document["runs"][1]["name"] = "y";
    const Ran ran = run(document, fakes::backend());
    std::istringstream lines(ran.table);
    std::set<std::size_t> lengths;
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("#") || line.find("step ms") != std::string::npos) {
        lengths.insert(line.size());
        ++rows;
      }
    }
    EXPECT_EQ(rows, 3) << ran.table;
    EXPECT_EQ(lengths.size(), 1u) << ran.table;
  }
}

TEST(Result, DoesNotDependOnTheLocaleOfTheLibrary) {
  if (!set_german_locale()) {
    GTEST_SUCCEED() << "this system cannot make one; the next test has commas of its own";
  }
  const Ran ran = run(small_scenario(), fakes::backend());
  std::setlocale(LC_ALL, "C");
  EXPECT_DOUBLE_EQ(ran.result["runs"][0]["metrics"]["exposed_communication_s"]["median"].get<double>(), 0.05);
  EXPECT_EQ(ran.result["scenario"]["optimizer"]["learning_rate"], 0.1);
  EXPECT_THAT(ran.table, HasSubstr("200.0..200.0"));
}

// Commas for decimals in C++ streams, as a locale would put them: numbers in files stay JSON.
TEST(Result, DoesNotDependOnTheLocale) {
  struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Commas));
  const Ran ran = run(small_scenario(), fakes::backend());
  std::locale::global(before);
  EXPECT_DOUBLE_EQ(ran.result["runs"][0]["metrics"]["exposed_communication_s"]["median"].get<double>(), 0.05);
  EXPECT_EQ(ran.result["scenario"]["optimizer"]["learning_rate"], 0.1);
  EXPECT_THAT(ran.table, HasSubstr("200.0..200.0"));
}

// ---- whole or not there ------------------------------------------------------------------------------------------

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    names.push_back(file.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// In a child that may die; returns its exit status.
int in_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(WholeFile, AFullDiskLeavesWhatWasThere) {
  const std::string folder = fakes::folder();
  const std::string path = folder + "/result.json";
  write_whole_file(path, "before", Existing::refuse);
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};  // writes beyond fail as on a full disk
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_whole_file(path, std::string(5000, 'x'), Existing::replace);
    } catch (const Error&) {
      return 3;
    }
    return 0;
  });
  EXPECT_EQ(status, 3);
  EXPECT_EQ(fakes::read_file(path), "before");
  EXPECT_EQ(files_in(folder), std::vector<std::string>{"result.json"});  // no temporary file left
}

TEST(WholeFile, IsNotReplacedUnlessAskedFor) {
  const std::string path = fakes::folder() + "/a";
  write_whole_file(path, "1", Existing::refuse);
  EXPECT_THROW(write_whole_file(path, "2", Existing::refuse), UsageError);
  EXPECT_EQ(fakes::read_file(path), "1");
  write_whole_file(path, "3", Existing::replace);
  EXPECT_EQ(fakes::read_file(path), "3");
  EXPECT_THROW(write_whole_file("no/such/folder/a", "1", Existing::replace), Error);
}

TEST(Result, OfAKilledProgramIsWholeAndSaysHowFarItCame) {
  const Experiment experiment = prepare(fakes::read(small_scenario()), fakes::backend());
  const std::string out = experiment.scenario.file + ".out";
  const int status = in_child([&] {
    const Backend backend = backend_where("layered_accumulation", [](const TrainRequest&) -> TrainOutcome {
      std::raise(SIGKILL);
      return {};
    });
    std::FILE* nothing = std::fopen("/dev/null", "w");
    Reporter reporter(nothing, nothing);
    return static_cast<int>(run_experiment(experiment, backend, {out, false, false, {}}, reporter));
  });
  EXPECT_EQ(status, 128 + SIGKILL);
  const Json result = Json::parse(fakes::read_file(out + "/result.json"));
  EXPECT_TRUE(result["ended"].is_null());
  EXPECT_EQ(result["runs"][0]["status"], "ok");
  EXPECT_EQ(result["runs"][1]["status"], "failed");
  EXPECT_THAT(result["runs"][1]["reason"], HasSubstr("ended while it ran"));
  EXPECT_EQ(files_in(out), std::vector<std::string>{"result.json"});
}

// ---- before the runs ---------------------------------------------------------------------------------------------

TEST(Prepare, RefusesABatchThatDoesNotDivideBeforeAnythingStarts) {
  Json document = small_scenario();
  document["batch"]["global"] = 7;
  try {
    prepare(fakes::read(document), fakes::backend());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("run depth-first"));
    EXPECT_THAT(error.what(), HasSubstr("the nearest are 6 and 8"));
  }
}

TEST(Prepare, RefusesWhatCannotFitIntoMemory) {
  Json document = small_scenario();
  document["model"] = {{"layers", 100000}, {"hidden", 10000}, {"heads", 2}, {"sequence", 8}, {"vocabulary", 16}};
  EXPECT_THROW(prepare(fakes::read(document), fakes::backend()), UsageError);
  document["model"]["hidden"] = 4;
  document["model"]["layers"] = 1;
  document["batch"]["global"] = 1000000000000;
  EXPECT_THROW(prepare(fakes::read(document), fakes::backend()), UsageError);
}

// The model's 900 parameters, all-reduced over two ranks, send 900·4 bytes; a step of compute takes 0.1 s.
TEST(Calibration, MakesTheAllReduceTakeItsShareOfTheComputeTime) {
  Json document = small_scenario();
  document["transport"] = {{"link", {{"all_reduce_share_of_compute", 0.5}, {"latency_s", 1e-3}}}};
  document["disturbances"] = Json::parse(R"([{"kind": "fail", "rank": 1}])");
  int calibrations = 0;
  std::vector<double> bandwidths;
  Backend backend = fakes::backend();
  backend.train = [&](const TrainRequest& request, const StepProgress& progress) {
    if (request.communication) {
      bandwidths.push_back(request.link.bandwidth_bits_per_s);
      EXPECT_EQ(request.link.latency_s, 1e-3);
      EXPECT_EQ(request.disturbances.size(), 1);
    } else {
      ++calibrations;
      EXPECT_EQ(request.disturbances.size(), 0);
      EXPECT_EQ(request.schedule.plan.parallel.data, 2);
    }
    return fakes::train(request, progress);
  };
  const Ran ran = run(document, backend);
  const double expected = 900 * 4 * 8 / (0.5 * 0.1);
  EXPECT_EQ(calibrations, 1);
  ASSERT_EQ(bandwidths.size(), 2);
  EXPECT_DOUBLE_EQ(bandwidths[0], expected);
  EXPECT_DOUBLE_EQ(bandwidths[1], expected);
  const Json& link = ran.result["scenario"]["transport"]["link"];
  EXPECT_EQ(link["all_reduce_share_of_compute"], 0.5);
  EXPECT_DOUBLE_EQ(link["bandwidth_bits_per_s"].get<double>(), expected);
  EXPECT_EQ(ran.result["runs"][0]["link"]["source"], "calibrated");
  EXPECT_EQ(ran.result["runs"][0]["link"]["compute_time_s"], 0.1);
}

TEST(Calibration, IsDoneOnceForSettingsThatDifferInTheLinkAlone) {
  Json document = small_scenario();
  document["transport"] = {{"link", {{"all_reduce_share_of_compute", 1.0}}}};
  document["sweep"] = Json::parse(R"({"transport.link.all_reduce_share_of_compute": [0.5, 1.0]})");
  int calibrations = 0;
  Backend backend = fakes::backend();
  backend.train = [&](const TrainRequest& request, const StepProgress& progress) {
    calibrations += request.communication ? 0 : 1;
    return fakes::train(request, progress);
  };
  const Ran ran = run(document, backend);
  EXPECT_EQ(calibrations, 1);
  ASSERT_EQ(ran.result["runs"].size(), 4);
  EXPECT_EQ(ran.result["runs"][2]["sweep"]["transport.link.all_reduce_share_of_compute"], 1.0);
  EXPECT_DOUBLE_EQ(ran.result["runs"][0]["link"]["bandwidth_bits_per_s"].get<double>(),
                   2 * ran.result["runs"][2]["link"]["bandwidth_bits_per_s"].get<double>());
}

TEST(Calibration, ComputesWithoutPartition) {
  Json document = small_scenario();
  document["transport"] = {{"link", {{"all_reduce_share_of_compute", 0.5}}}};
  document["runs"] = Json::parse(R"([
      {"name": "a", "method": "data_parallel", "parallel": {"data": 2}, "zero_stage": 3, "resident_layers": 1}])");
  Backend backend = fakes::backend();
  backend.train = [](const TrainRequest& request, const StepProgress& progress) {
    EXPECT_EQ(request.schedule.plan.zero_stage, request.communication ? 3 : 0);
    return fakes::train(request, progress);
  };
  EXPECT_EQ(run(document, backend).code, kFine);
}

TEST(Calibration, NeedsARunThatAllReducesUnlessThereIsNoLinkAtAll) {
  Json document = small_scenario();
  document["transport"] = {{"link", {{"all_reduce_share_of_compute", 0.5}}}};
  document["runs"] = Json::parse(R"([{"name": "a", "method": "data_parallel", "parallel": {"pipeline": 2}}])");
  EXPECT_THROW(prepare(fakes::read(document), fakes::backend()), UsageError);
  document["runs"] = Json::parse(R"([{"name": "a", "method": "data_parallel"}])");
  const Ran alone = run(document, fakes::backend());
  EXPECT_EQ(alone.code, kFine);
  EXPECT_THAT(alone.progress, HasSubstr("no link to calibrate"));
  EXPECT_TRUE(alone.result["runs"][0]["link"]["bandwidth_bits_per_s"].is_null());
}

TEST(Calibration, ThatFailsSkipsItsRuns) {
  Json document = small_scenario();
  document["transport"] = {{"link", {{"all_reduce_share_of_compute", 0.5}}}};
  Backend backend = fakes::backend();
  backend.train = [](const TrainRequest&, const StepProgress&) -> TrainOutcome { throw Error("no luck"); };
  const Ran ran = run(document, backend);
  EXPECT_EQ(ran.code, kFailed);
  EXPECT_EQ(ran.result["runs"][0]["status"], "skipped");
  EXPECT_THAT(ran.result["runs"][0]["reason"], HasSubstr("no luck"));
}

TEST(SlowRank, IsNamedInResultAndWarning) {
  const Ran ran = run(small_scenario(), backend_where("layered_accumulation", [](const TrainRequest& request) {
                        TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
                        for (StepRecord& step : outcome.steps) {
                          step.rank_time_s = {0.3, 0.3};
                          step.rank_exposed_s = {0.15, 0.05};
                        }
                        return outcome;
                      }));
  EXPECT_TRUE(ran.result["runs"][0]["metrics"]["step_time_s"]["slow_rank"].is_null());
  EXPECT_EQ(ran.result["runs"][1]["metrics"]["step_time_s"]["slow_rank"]["rank"], 1);
  EXPECT_THAT(ran.progress, HasSubstr("run layered: rank 1 keeps the others waiting"));
}

// ---- expectations ------------------------------------------------------------------------------------------------

TEST(Expectations, OfRatiosDecideTheExitCode) {
  const Backend twice_as_fast = backend_where("layered_accumulation", [](const TrainRequest& request) {
    TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
    for (StepRecord& step : outcome.steps) {
      step.rank_time_s = {0.1, 0.1};
    }
    return outcome;
  });
  const Ran met = run(with_expectations(R"([
      {"metric": "step_time_s", "of": "depth-first", "over": "layered", "at_least": 2.0, "at_most": 2.0},
      {"metric": "tokens_per_s", "of": "layered", "over": "depth-first", "at_least": 1.9},
      {"metric": "traffic_bytes", "of": "layered", "over": "depth-first", "at_most": 1.0},
      {"metric": "peak_memory_bytes", "of": "layered", "over": "depth-first", "at_least": 1.0}])"),
                      twice_as_fast);
  EXPECT_EQ(met.code, kFine);
  EXPECT_EQ(met.result["expectations"][0]["measured"], 2.0);
  EXPECT_EQ(met.result["expectations"][0]["met"], true);
  EXPECT_EQ(met.result["expectations"][3]["measured"], 1.0);
  const Ran below = run(
      with_expectations(R"([{"metric": "step_time_s", "of": "depth-first", "over": "layered", "at_least": 2.001}])"),
      twice_as_fast);
  EXPECT_EQ(below.code, kNotMet);
  EXPECT_EQ(below.result["expectations"][0]["met"], false);
  EXPECT_THAT(below.table, HasSubstr("NOT MET"));
  const Ran above =
      run(with_expectations(R"([{"metric": "step_time_s", "of": "depth-first", "over": "layered", "at_most": 1.999}])"),
          twice_as_fast);
  EXPECT_EQ(above.code, kNotMet);
}

TEST(Expectations, OfSeriesLookAtEveryStep) {
  const Backend apart = backend_where("layered_accumulation", [](const TrainRequest& request) {
    TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
    outcome.steps[2].loss *= 1 + 1e-4;
    return outcome;
  });
  const auto expect = [](const char* within) {
    return with_expectations(fmt::format(R"([{{"metric": "loss", "of": "layered", "equal_to": "depth-first", )"
                                         R"("within": {}}}])",
                                         within)
                                 .c_str());
  };
  const Ran close = run(expect("1.01e-4"), apart);
  EXPECT_EQ(close.code, kFine);
  EXPECT_NEAR(close.result["expectations"][0]["measured"].get<double>(), 1e-4, 1e-7);
  EXPECT_EQ(run(expect("0.99e-4"), apart).code, kNotMet);
  const Backend diverging = backend_where("layered_accumulation", [](const TrainRequest& request) {
    TrainOutcome outcome = fakes::train(request, [](std::int64_t, const StepRecord&) {});
    outcome.steps[2].loss = std::nan("");
    return outcome;
  });
  const Ran diverged = run(expect("1"), diverging);
  EXPECT_EQ(diverged.code, kNotMet);
  EXPECT_TRUE(diverged.result["expectations"][0]["measured"].is_null());
}

TEST(Expectations, OfASweepCompareEachPointWithItself) {
  Json document = with_expectations(R"([
      {"metric": "step_time_s", "of": "layered", "over": "depth-first", "at_most": 1.0},
      {"metric": "step_time_s", "of": "layered, seed=2", "over": "layered, seed=1", "at_least": 2.0}])");
  document["sweep"] = {{"seed", {1, 2}}};
  Backend backend = fakes::backend();
  backend.train = [](const TrainRequest& request, const StepProgress& progress) {
    TrainOutcome outcome = fakes::train(request, progress);
    for (StepRecord& step : outcome.steps) {
      step.rank_time_s = {0.1 * static_cast<double>(request.seed), 0.1};
    }
    return outcome;
  };
  const Ran ran = run(document, backend);
  EXPECT_EQ(ran.code, kFine);
  ASSERT_EQ(ran.result["expectations"].size(), 3);
  EXPECT_EQ(ran.result["expectations"][1]["sweep"]["seed"], 2);
  EXPECT_EQ(ran.result["expectations"][2]["measured"], 2.0);
}

TEST(Expectations, OfAFailedRunAreNotMet) {
  const Ran ran =
      run(with_expectations(R"([{"metric": "step_time_s", "of": "layered", "over": "depth-first",
                                             "at_most": 9}])"),
          backend_where("layered_accumulation", [](const TrainRequest&) -> TrainOutcome { throw Error("broken"); }));
  EXPECT_EQ(ran.code, kFailed);
  EXPECT_EQ(ran.result["expectations"][0]["met"], false);
  EXPECT_TRUE(ran.result["expectations"][0]["measured"].is_null());
  EXPECT_THAT(ran.result["expectations"][0]["reason"], HasSubstr("run layered failed"));
}

// ---- the trace ---------------------------------------------------------------------------------------------------

Op op(std::int32_t id, OpKind kind, StreamKind stream, std::int32_t peer = -1) {
  Op made;
  made.id = id;
  made.kind = kind;
  made.stream = stream;
  made.unit = layer_unit(0);
  made.micro_batch = 0;
  made.peer = peer;
  return made;
}

Schedule two_stages(std::vector<Op> first, std::vector<Op> second, std::int64_t data) {
  Schedule schedule;
  schedule.plan.parallel = {.data = data, .pipeline = 2, .tensor = 1};
  schedule.programs.resize(2);
  schedule.programs[0].ops = std::move(first);
  schedule.programs[1].ops = std::move(second);
  return schedule;
}

std::vector<Json> events_with(const Json& trace, const char* key, const char* value) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"]) {
    if (event[key] == value) {
      found.push_back(event);
    }
  }
  return found;
}

TEST(Trace, HasATrackForEachStreamAndAnArrowForEachMessage) {
  const Schedule schedule = two_stages(
      {op(0, OpKind::forward, StreamKind::compute), op(1, OpKind::send, StreamKind::send_forward, 1),
       op(2, OpKind::all_reduce, StreamKind::data)},
      {op(0, OpKind::receive, StreamKind::receive_forward, 0), op(1, OpKind::forward, StreamKind::compute)}, 2);
  Trace trace;
  for (const std::int32_t rank : {0, 1}) {
    trace.push_back({0, rank, 0, 0.001, 0.002});
    trace.push_back({1, rank, 0, 0.002, 0.003});
    trace.push_back({2, rank, 0, 0.004, 0.006});
    trace.push_back({0, rank + 2, 0, 0.001, 0.004});
    trace.push_back({1, rank + 2, 0, 0.004, 0.005});
  }
  ChromeTrace chrome;
  chrome.add_run("first \"run\"", schedule, trace);
  chrome.add_run("second", schedule, trace);
  const Json json = Json::parse(chrome.text());

  EXPECT_EQ(events_with(json, "name", "process_name").size(), 8);
  EXPECT_EQ(events_with(json, "name", "process_name")[0]["args"]["name"], "first \"run\": rank 0");
  EXPECT_EQ(events_with(json, "name", "thread_name").size(), 2 * (2 * 3 + 2 * 2));
  EXPECT_EQ(events_with(json, "ph", "X").size(), 20);
  EXPECT_EQ(events_with(json, "ph", "X")[0]["ts"], 1000);
  EXPECT_EQ(events_with(json, "ph", "X")[0]["dur"], 1000);

  // A run: two messages between the stages (rank 0 to 2, 1 to 3), and the all-reduce of ranks 0 and 1 both ways.
  const auto starts = events_with(json, "ph", "s");
  const auto ends = events_with(json, "ph", "f");
  ASSERT_EQ(starts.size(), 8);
  ASSERT_EQ(ends.size(), 8);
  std::vector<std::pair<int, int>> arrows;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(starts[i]["id"], ends[i]["id"]);
    EXPECT_LE(starts[i]["ts"].get<double>(), ends[i]["ts"].get<double>());
    arrows.emplace_back(starts[i]["pid"].get<int>(), ends[i]["pid"].get<int>());
  }
  EXPECT_EQ(arrows, (std::vector<std::pair<int, int>>{{0, 2}, {1, 3}, {0, 1}, {1, 0}}));
  EXPECT_EQ(ends[0]["bp"], "e");
  EXPECT_EQ(ends[0]["tid"], static_cast<int>(StreamKind::receive_forward));
}

// At two stages both directions are messages between the same ranks. Here the gradient of one micro-batch starts before
// and ends after an activation: each arrow joins the two ends of its own message.
TEST(Trace, TellsTheDirectionsOfMessagesApart) {
  const Schedule schedule = two_stages(
      {op(0, OpKind::send, StreamKind::send_backward, 1), op(1, OpKind::send, StreamKind::send_forward, 1)},
      {op(0, OpKind::receive, StreamKind::receive_forward, 0), op(1, OpKind::receive, StreamKind::receive_backward, 0)},
      1);
  const Trace trace{{0, 0, 0, 0.001, 0.005}, {1, 0, 0, 0.002, 0.003}, {0, 1, 0, 0.002, 0.003}, {1, 1, 0, 0.001, 0.005}};
  ChromeTrace chrome;
  chrome.add_run("both ways", schedule, trace);
  const Json json = Json::parse(chrome.text());
  const auto starts = events_with(json, "ph", "s");
  const auto ends = events_with(json, "ph", "f");
  ASSERT_EQ(starts.size(), 2);
  ASSERT_EQ(ends.size(), 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const bool activation = starts[i]["tid"] == static_cast<int>(StreamKind::send_forward);
    EXPECT_EQ(ends[i]["tid"],
              static_cast<int>(activation ? StreamKind::receive_forward : StreamKind::receive_backward));
  }
}

// Two hosts' clocks may be further apart than a message is long. An arrow that cannot end in its message is left out;
// one that can does, with ends that only just overlap too.
TEST(Trace, ArrowsLieInTheirMessages) {
  const Schedule schedule = two_stages(
      {op(0, OpKind::send, StreamKind::send_forward, 1), op(1, OpKind::send, StreamKind::send_forward, 1)},
      {op(0, OpKind::receive, StreamKind::receive_forward, 0), op(1, OpKind::receive, StreamKind::receive_forward, 0)},
      1);
  const Trace trace{
      {0, 0, 0, 0.003, 0.004}, {1, 0, 0, 0.005, 0.007}, {0, 1, 0, 0.001, 0.002}, {1, 1, 0, 0.003, 0.0051}};
  ChromeTrace chrome;
  chrome.add_run("two hosts", schedule, trace);
  const Json json = Json::parse(chrome.text());
  const auto starts = events_with(json, "ph", "s");
  const auto ends = events_with(json, "ph", "f");
  ASSERT_EQ(starts.size(), 1);
  ASSERT_EQ(ends.size(), 1);
  EXPECT_GE(starts[0]["ts"], 5000);
  EXPECT_LE(starts[0]["ts"], 5100);
  EXPECT_GE(ends[0]["ts"], starts[0]["ts"]);
  EXPECT_LE(ends[0]["ts"], 5100);
}

TEST(Trace, IsWrittenBesideTheResult) {
  const Ran ran = run(small_scenario(), fakes::backend(), true);
  const std::string out = "Trace.IsWrittenBesideTheResult/scenario.json.out";
  const Json trace = Json::parse(fakes::read_file(out + "/trace.json"));
  EXPECT_EQ(events_with(trace, "name", "process_name").size(), 4);  // two runs of two ranks
}

}  // namespace
}  // namespace lamina
