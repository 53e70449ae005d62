#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "impl/harness/context.h"
#include "impl/harness/keys.h"
#include "tests/unit/command.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Ended lamina_command(const std::vector<std::string>& arguments, const Backend& backend = fakes::backend()) {
  return run_command(arguments, backend);
}

std::string scenario_file(const Json& document = fakes::small_scenario()) {
  return fakes::write_file(fakes::folder() + "/scenario.json", document.dump());
}

TEST(CommandLine, BadUsageIsOneLineAndTwo) {
  expect_complaint(lamina_command({}), 2, "subcommand");
  expect_complaint(lamina_command({"fly"}), 2, "fly");
  expect_complaint(lamina_command({"run"}), 2, "SCENARIO");
  expect_complaint(lamina_command({"run", "x.json", "--fast"}), 2, "--fast");
  expect_complaint(lamina_command({"run", "x.json", "y.json"}), 2, "y.json");
  expect_complaint(lamina_command({"check"}), 2, "scenario");
  expect_complaint(lamina_command({"run", "no/such.json"}), 2, "no/such.json");
  expect_complaint(lamina_command({"check", scenario_file(), "--set", "seed"}), 2, "path=value");
  expect_complaint(lamina_command({"show", scenario_file(), "--run", "layred"}), 2, "did you mean layered?");
}

TEST(CommandLine, ABadScenarioStartsNothing) {
  Json document = fakes::small_scenario();
  document["model"]["layers"] = 4.5;
  Backend backend = fakes::backend();
  backend.train = [](const TrainRequest&, const StepProgress&) -> TrainOutcome {
    ADD_FAILURE() << "something was started";
    return {};
  };
  const std::string out = fakes::folder() + "/out";
  expect_complaint(lamina_command({"run", scenario_file(document), "--out", out}, backend), 2, "model.layers is 4.5");
  EXPECT_FALSE(std::filesystem::exists(out));
  Json unknown = fakes::small_scenario();
  unknown["runs"][0]["method"] = "none";
  expect_complaint(lamina_command({"run", scenario_file(unknown), "--out", out}, backend), 2, "run depth-first");
}

TEST(CommandLine, WhatAllRanksTogetherCannotAllocateIsRefused) {
  Backend backend = fakes::backend();
  std::vector<std::int64_t> stages;
  const auto most = static_cast<std::int64_t>(physical_memory_bytes());
  backend.planned_memory = [&](const Schedule&, std::int64_t stage, std::int64_t, const OptimizerConfig&,
                               const Precision&, int) {
    stages.push_back(stage);
    return RankMemory{.working_set = most / 3};
  };
  const std::string file = scenario_file();
  EXPECT_EQ(lamina_command({"check", file}, backend).code, 0);  // two ranks: two thirds
  expect_complaint(lamina_command({"check", file, "--set", "runs[].parallel.data=4"}, backend), 2, "4 ranks allocate");
  stages.clear();
  expect_complaint(lamina_command({"check", file, "--set", "runs[].parallel={\"data\": 2, \"pipeline\": 2}"}, backend),
                   2, "4 ranks allocate");
  EXPECT_EQ(stages, (std::vector<std::int64_t>{0, 1}));
}

TEST(CommandLine, WhatCannotBeCountedIsRefusedBeforeAScheduleIsBuilt) {
  Backend backend = fakes::backend();
  backend.build_schedule = [](const Method&, const Plan& plan) -> Schedule {
    ADD_FAILURE() << "a schedule was built";
    return {plan, {}};
  };
  const std::string file = scenario_file();
  const auto refused = [&](const std::vector<std::string>& set, const std::string& words) {
    std::vector<std::string> arguments{"check", file};
    for (const std::string& one : set) {
      arguments.insert(arguments.end(), {"--set", one});
    }
    expect_complaint(lamina_command(arguments, backend), 2, words);
  };
  refused({"batch.global=1000000000000"}, "5e+12 ops; at most 5e+06");
  refused({"model.layers=1000000000", "runs[].parallel.pipeline=2"}, "ops; at most 5e+06");
  refused({"runs[].parallel.data=1000000", "runs[].parallel.pipeline=1000000"}, "1e+12 ranks");
  refused({"model.sequence=1000000000", "batch.global=2"}, "numbers");
}

TEST(CommandLine, PathsThatNoFileCanHaveAreOneLineThatNamesTheKey) {
  const std::string file = scenario_file();
  const std::string out = file + ".out";
  const std::string long_name(300, 'n');
  expect_complaint(lamina_command({"check", file, "--set", "data.text_file=" + long_name}), 2, "data.text_file is");
  expect_complaint(lamina_command({"check", file, "--set", "initial_weights=" + long_name}), 2, "initial_weights is");
  expect_complaint(lamina_command({"run", file, "--out", long_name}), 2, "--out: nnn");
  expect_complaint(lamina_command({"run", file, "--out", std::string(5000, 'n')}), 2, "--out: nnn");
  const std::string dump = R"(dump={"step": 0, "weights": "{run})";
  expect_complaint(lamina_command({"run", file, "--out", out, "--set", dump + long_name + "\"}"}), 2, "dump.weights: ");
  expect_complaint(lamina_command({"run", file, "--out", out, "--set", dump + std::string(240, 'n') + "\"}"}), 2,
                   "is too long a name; at most 248 bytes");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(CommandLine, SetIsReadAsStrictlyAsAScenario) {
  const std::string file = scenario_file();
  const auto refused = [&](const std::string& set, const std::string& words) {
    expect_complaint(lamina_command({"check", file, "--set", set}), 2, words);
  };
  refused("data.text_file=a\xff.txt", "is not UTF-8");
  refused("\xff=1", "is not UTF-8");
  refused(R"(batch={"global": 8, "global": 4, "micro": 1})", "global is given twice");
  refused("runs[0]=null", "null cannot take runs[0] out of its list");
  refused("runs[layered]=5", "runs[1] would be 5, and must be an object");
  EXPECT_EQ(
      lamina_command({"check", file, "--set", R"(runs[layered]={"name": "other", "method": "layered_accumulation"})"})
          .code,
      0);
  // Elsewhere such bytes are the system's business.
  const std::string out = file + ".\xff";
  EXPECT_EQ(lamina_command({"run", file, "--out", out}).code, 0);
  EXPECT_THAT(Json::parse(fakes::read_file(out + "/result.json"))["argv"].back().get<std::string>(),
              HasSubstr("\xef\xbf\xbd"));
}

TEST(CommandLine, OutputsThatTakeTheNameOfAnotherFileAreRefused) {
  Json document = fakes::small_scenario();
  document["runs"].erase(1);
  const std::string file = scenario_file(document);
  const std::string folder = std::filesystem::path(file).parent_path();
  const std::string out = folder + "/out";
  fakes::write_file(folder + "/start", "weights");
  fakes::write_file(folder + "/text", "data");
  std::filesystem::create_directories(out);
  std::filesystem::create_directory_symlink("out", folder + "/link");
  const auto dump_to = [&](const std::string& path) {
    return lamina_command({"run", file, "--out", out, "--force", "--trace", "--set", "initial_weights=start", "--set",
                           "data.text_file=text", "--set",
                           fmt::format(R"(dump={{"step": 0, "weights": "{}"}})", path)});
  };
  expect_complaint(dump_to("out/result.json"), 2, "would overwrite --out");
  expect_complaint(dump_to("./out/../link/trace.json"), 2, "would overwrite --out");
  expect_complaint(dump_to("start"), 2, "would overwrite initial_weights");
  expect_complaint(dump_to("text"), 2, "would overwrite data");
  expect_complaint(dump_to("scenario.json"), 2, "would overwrite the scenario");
  EXPECT_EQ(dump_to("out/weights").code, 0);
}

TEST(CommandLine, RunEndsWithTheRunnersCode) {
  const std::string file = scenario_file();
  const std::string out = file + ".out";
  const Ended fine = lamina_command({"run", file, "--out", out, "--set", "seed=5"});
  EXPECT_EQ(fine.code, 0);
  EXPECT_THAT(fine.output, AllOf(HasSubstr("# seed: 5\n"), HasSubstr("# model.layers: 3\n"),
                                 HasSubstr("# run layered: layered_accumulation, 2 data x 1 pipeline x 1 tensor"),
                                 HasSubstr("\nlayered   ")));
  const Json result = Json::parse(fakes::read_file(out + "/result.json"));
  EXPECT_EQ(result["argv"], Json(std::vector<std::string>{"lamina", "run", file, "--out", out, "--set", "seed=5"}));

  const Ended again = lamina_command({"run", file, "--out", out});
  expect_complaint(again, 2, "--force");
  EXPECT_EQ(lamina_command({"run", file, "--out", out, "--force"}).code, 0);

  Backend failing = fakes::backend();
  failing.train = [](const TrainRequest&, const StepProgress&) -> TrainOutcome { throw Error("a rank\nfell over"); };
  EXPECT_EQ(lamina_command({"run", file, "--out", out, "--force"}, failing).code, 3);

  Json document = fakes::small_scenario();
  document["expect"] =
      Json::parse(R"([{"metric": "step_time_s", "of": "layered", "over": "depth-first", "at_least": 2}])");
  EXPECT_EQ(lamina_command({"run", scenario_file(document), "--out", out, "--force"}).code, 1);
}

TEST(CommandLine, AFormerTraceDoesNotOutliveItsResult) {
  const std::string file = scenario_file();
  const std::string out = file + ".out";
  EXPECT_EQ(lamina_command({"run", file, "--out", out, "--trace"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(out + "/trace.json"));
  EXPECT_EQ(lamina_command({"run", file, "--out", out, "--force"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(out + "/trace.json"));
  // A trace that cannot be written is not worth a run.
  std::filesystem::create_directories(out + "/trace.json/in the way");
  const Ended ended = lamina_command({"run", file, "--out", out, "--force", "--trace"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.errors, HasSubstr("warning: no trace: "));
}

TEST(CommandLine, ATableThatCannotBeWrittenIsAFailureAfterTheResultWasSaved) {
  const std::string file = scenario_file();
  const std::string out = file + ".out";
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  std::FILE* errors = std::tmpfile();
  EXPECT_EQ(run_command_line({"run", file, "--out", out}, fakes::backend(), full, errors), 3);
  std::fclose(full);
  EXPECT_THAT(drain(errors), HasSubstr("lamina: the table cannot be written; the result is in " + out));
  const Json result = Json::parse(fakes::read_file(out + "/result.json"));
  EXPECT_EQ(result["runs"][1]["status"], "ok");
  EXPECT_FALSE(result["ended"].is_null());
}

TEST(CommandLine, LongOutputThatADiskDoesNotTakeIsAFailure) {
  std::FILE* full = std::fopen("/dev/full", "w");
  std::FILE* errors = std::tmpfile();
  EXPECT_EQ(run_command_line({"check", "--keys"}, fakes::backend(), full, errors), 3);
  std::fclose(full);
  EXPECT_THAT(drain(errors), HasSubstr("lamina: the output cannot be written"));
}

TEST(CommandLine, ProgressGoesToTheOtherStreamWithoutControlCharacters) {
  const std::string file = scenario_file();
  const Ended ended = lamina_command({"run", file, "--out", file + ".out"});
  EXPECT_THAT(ended.errors, HasSubstr("[1/2] depth-first\n"));
  EXPECT_EQ(ended.errors.find('\033'), std::string::npos);
  EXPECT_EQ(ended.errors.find('\r'), std::string::npos);
}

TEST(CommandLine, CheckPrintsWhatAScenarioResolvesTo) {
  const Ended ended = lamina_command({"check", scenario_file(), "--set", "batch.micro=2"});
  EXPECT_EQ(ended.code, 0);
  const Json resolved = Json::parse(ended.output);
  EXPECT_EQ(resolved["runs"][1]["plan"]["micro_batches"], 2);
  EXPECT_EQ(resolved["scenario"]["batch"]["micro"], 2);
  EXPECT_EQ(resolved["runs"][0]["parameters"], 900);
}

TEST(CommandLine, CheckPrintsSchemaKeysAndSupport) {
  EXPECT_EQ(lamina_command({"check", "--schema"}).output, scenario_schema().dump(2) + "\n");
  EXPECT_EQ(lamina_command({"check", "--keys"}).output, keys_as_markdown());
  Backend backend = fakes::backend();
  backend.build_schedule = [](const Method&, const Plan& plan) -> Schedule {
    if (plan.zero_stage == 3) {
      throw UsageError("stage 3 is too much");
    }
    return {plan, {}};
  };
  const Ended support = lamina_command({"check", "--support"}, backend);
  EXPECT_EQ(support.code, 0);
  EXPECT_THAT(support.output, AllOf(HasSubstr("layered_accumulation"), HasSubstr("no: stage 3 is too much")));
}

TEST(CommandLine, ShowPrintsSchedules) {
  Json document = fakes::small_scenario();
  const std::string file = scenario_file(document);
  const Ended both = lamina_command({"show", file});
  EXPECT_EQ(both.code, 0);
  EXPECT_THAT(both.output, AllOf(HasSubstr("# depth-first\n"), HasSubstr("# layered\n")));
  const Ended one = lamina_command({"show", file, "--run", "layered", "--text"});
  EXPECT_THAT(one.output, HasSubstr("# layered\n"));
  EXPECT_EQ(one.output.find("# depth-first"), std::string::npos);
}

TEST(CommandLine, InfoVersionAndHelpAreFine) {
  const Ended info = lamina_command({"info"});
  EXPECT_EQ(info.code, 0);
  EXPECT_THAT(info.output, AllOf(HasSubstr("layered_accumulation"), HasSubstr("infiniband-hdr"), HasSubstr("MPI")));
  const Ended version = lamina_command({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.output, StartsWith("lamina "));
  const Ended help = lamina_command({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("Examples:"), HasSubstr("Exit codes:")));
  EXPECT_THAT(lamina_command({"run", "--help"}).output, HasSubstr("lamina run [OPTIONS] SCENARIO"));
}

}  // namespace
}  // namespace lamina
