// lamina plan, paper, link and calibrate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "impl/analysis/cluster_file.h"
#include "impl/harness/calibrate.h"
#include "impl/harness/link_measure.h"
#include "tests/unit/command.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Ended lamina_command(const std::vector<std::string>& arguments) { return run_command(arguments, real_backend()); }

void expect_complaint(const std::vector<std::string>& arguments, const std::string& words) {
  expect_complaint(lamina_command(arguments), 2, words);
}

const std::string kScenarios = LAMINA_TEST_DATA_DIR "/../scenarios";

// ---- plan --------------------------------------------------------------------------------------------------------

Json search_scenario() {
  return {{"schema_version", 1},
          {"name", "search"},
          {"executor", "search"},
          {"model", {{"layers", 32}, {"hidden", 4096}, {"heads", 32}, {"sequence", 512}, {"vocabulary", 50000}}},
          {"cluster", kScenarios + "/clusters/a100-80gb-infiniband.json"},
          {"search", {{"max_gpus", 64}}}};
}

std::string search_file(const Json& document = search_scenario()) {
  return fakes::write_file(fakes::folder() + "/search.json", document.dump());
}

TEST(Plan, ShowsTheFastestOfEachFamilyAndCountsRefusals) {
  const Ended ended = lamina_command({"plan", search_file()});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, IsEmpty());  // no live line where there is no terminal
  for (const char* words : {"\n  baseline ", "\n  baseline_interleaved ", "\n  improved ", "at most 64 GPUs with 80 GB",
                            "# refused: ", " for memory, ", " for batch, ", " for GPUs, "}) {
    EXPECT_THAT(ended.output, HasSubstr(words));
  }
}

TEST(Plan, ObeysItsLimits) {
  const std::string file = search_file();
  const std::string out = std::filesystem::path(file).parent_path() / "out";
  const Ended ended =
      lamina_command({"plan", file, "--set", "search.max_gpus=8", "--set", "search.memory_bytes=3e10", "--out", out});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  const Json document = Json::parse(fakes::read_file(out + "/plan.json"));
  int seen = 0;
  for (const Json& track : document["tracks"]) {
    for (const Json& plan : track["best"]) {
      ++seen;
      EXPECT_LE(plan["gpus"].get<int>(), 8);
      double bytes = 0;
      for (const char* kind : {"parameters", "gradients", "optimizer", "buffers", "checkpoints", "working_set"}) {
        bytes += plan["memory"][std::string(kind) + "_bytes"].get<double>();
      }
      EXPECT_GT(bytes, 0);
      EXPECT_LE(bytes, 3e10);
    }
  }
  EXPECT_GT(seen, 0);
  EXPECT_GT(document["counts"]["evaluated"].get<double>(), 0);
  expect_complaint({"plan", file, "--out", out}, "plan.json exists; --force replaces it");
}

TEST(Plan, ConfirmsTheBestOfEachList) {
  const std::string file = search_file();
  const std::string out = std::filesystem::path(file).parent_path() / "out";
  const Ended ended = lamina_command({"plan", file, "--out", out, "--confirm", "2"});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("# simulated: the schedules of the best 2 plans"), HasSubstr("sim/form")));
  const Json document = Json::parse(fakes::read_file(out + "/plan.json"));
  int simulated = 0;
  for (const Json& track : document["tracks"]) {
    for (std::size_t i = 0; i < track["best"].size(); ++i) {
      const Json& plan = track["best"][i];
      ASSERT_EQ(plan.contains("simulated"), i < 2) << plan.dump();
      if (i < 2 && !plan["simulated"]["step_time_s"].is_null()) {
        ++simulated;
        const double ratio = plan["simulated"]["over_form"];
        EXPECT_NEAR(plan["simulated"]["step_time_s"].get<double>(), ratio * plan["step_time_s"].get<double>(), 1e-9);
        EXPECT_NEAR(plan["simulated"]["training_days"].get<double>(), ratio * plan["training_days"].get<double>(),
                    1e-6);
        EXPECT_GT(ratio, 0.5);
        EXPECT_LT(ratio, 1.5);
        EXPECT_EQ(plan["simulated"]["verified"].get<bool>(), plan["simulated"]["reason"].is_null());
      }
    }
  }
  EXPECT_GT(simulated, 2);
  const Ended none = lamina_command({"plan", file, "--out", out, "--force", "--confirm", "0"});
  EXPECT_THAT(none.output, testing::Not(HasSubstr("simulated")));
  EXPECT_THAT(fakes::read_file(out + "/plan.json"), testing::Not(HasSubstr("simulated")));
  expect_complaint({"plan", file, "--confirm", "-1"}, "-1");
}

TEST(Plan, IsPrintedForOtherSystems) {
  const Ended megatron = lamina_command({"plan", search_file(), "--emit", "megatron"});
  EXPECT_EQ(megatron.code, 0);
  EXPECT_THAT(megatron.output, AllOf(HasSubstr("--num-layers 32\n"), HasSubstr("--hidden-size 4096\n")));
  const Ended deepspeed = lamina_command({"plan", search_file(), "--emit", "deepspeed"});
  EXPECT_EQ(deepspeed.code, 0);
  EXPECT_THAT(deepspeed.output, HasSubstr("train_micro_batch_size_per_gpu"));
}

TEST(Plan, BadInputIsOneLineAndTwo) {
  const auto with = [](const char* set) { return std::vector<std::string>{"plan", search_file(), "--set", set}; };
  expect_complaint({"plan"}, "SCENARIO");
  expect_complaint({"plan", search_file(), "--emit", "horovod"}, "horovod");
  expect_complaint(with("search.memory_bytes=-1"), "search.memory_bytes is -1");
  expect_complaint(with("search.memory_bytes=1e6"), "no plan fits 64 GPUs with 0.001 GB each; refused: ");
  expect_complaint(with("model.layers=1e30"), "model.layers is 1e+30");
  expect_complaint(with("search.max_gpus=0"), "search.max_gpus is 0");
  expect_complaint(with("search.max_gpu=4"), "did you mean search.max_gpus?");
  expect_complaint(with("search.precision=int8"), "search.precision is \"int8\"");
  expect_complaint(with("cluster=nowhere.json"), "nowhere.json: cannot be read");
  expect_complaint({"run", search_file()}, "executor is search: lamina plan searches it");
  expect_complaint({"plan", fakes::write_file(fakes::folder() + "/s.json", fakes::small_scenario().dump())},
                   "executor is not search");
  Json cluster = Json::parse(fakes::read_file(kScenarios + "/clusters/a100-80gb-infiniband.json"));
  cluster["links"]["network"]["bandwidth_bits_per_s"]["value"] = 0;
  Json document = search_scenario();
  document["cluster"] = "c.json";
  const std::string file = search_file(document);
  fakes::write_file(std::filesystem::path(file).parent_path() / "c.json", cluster.dump());
  expect_complaint({"plan", file}, "links.network.bandwidth_bits_per_s.value: is 0; it must be a number above 0");
}

// ---- paper -------------------------------------------------------------------------------------------------------

TEST(Paper, WritesAFigureAsDataAndPictures) {
  const std::string out = fakes::folder() + "/figures";
  const Ended ended = lamina_command({"paper", "--figure", "memory", "--out", out});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.output, HasSubstr("# memory: "));
  const Json figure = Json::parse(fakes::read_file(out + "/memory.json"));
  EXPECT_TRUE(figure.contains("assumptions"));
  EXPECT_THAT(fakes::read_file(out + "/memory.csv"), HasSubstr("\n"));
  EXPECT_THAT(fakes::read_file(out + "/memory.png"), StartsWith("\x89PNG"));
  EXPECT_THAT(fakes::read_file(out + "/memory.pdf"), StartsWith("%PDF"));
  expect_complaint({"paper", "--figure", "memory", "--out", out}, "memory.json exists; --force replaces it");
}

TEST(Paper, ComparesWithMeasurementsOfOnesOwn) {
  const std::string out = fakes::folder() + "/published";
  const std::string file = fakes::folder() + "/mine.json";
  fakes::write_file(file, R"({"rows": [{"id": "mine", "gpu": "A100", "iteration_s": 2.5}]})");
  const Ended ended =
      lamina_command({"paper", "--figure", "published", "--measurements", file, "--out", out, "--no-pictures"});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.output, HasSubstr("Not compared: mine ('layers' is not stated)"));
  EXPECT_EQ(Json::parse(fakes::read_file(out + "/published.json"))["measurements"], file);
  fakes::write_file(file, R"({"rows": [{"id": "mine", "hidden": "4096"}]})");
  expect_complaint({"paper", "--figure", "published", "--measurements", file, "--out", "f"},
                   "mine.json.rows[0].hidden: is \"4096\"; it must be a whole number");
  expect_complaint({"paper", "--figure", "published", "--measurements", "nowhere.json", "--out", "f"},
                   "nowhere.json: cannot be read");
  expect_complaint({"paper", "--figure", "memory", "--measurements", file, "--out", "f"},
                   "--measurements is for figure published");
  EXPECT_FALSE(std::filesystem::exists("f"));
}

TEST(Paper, ConfirmsTheFrontierByItsSchedules) {
  const std::string out = fakes::folder() + "/figures";
  const Ended ended = lamina_command(
      {"paper", "--figure", "frontier", "--out", out, "--family", "32", "--max-gpus", "1000", "--no-pictures"});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_THAT(ended.output, HasSubstr("plans shown were simulated"));
  const Json figure = Json::parse(fakes::read_file(out + "/frontier.json"));
  int plans = 0;
  for (const Json& entry : figure["links"]["ethernet"]) {
    for (const std::string family : {"baseline", "baseline_interleaved", "improved"}) {
      const Json& plan = entry[family + "_plan"];
      if (plan.is_null()) {
        EXPECT_TRUE(entry[family + "_simulated_days"].is_null());
        continue;
      }
      ++plans;
      ASSERT_TRUE(entry[family + "_simulated_days"].is_number()) << plan["simulated"].dump();
      EXPECT_NEAR(entry[family + "_simulated_days"].get<double>() / entry[family + "_days"].get<double>(),
                  plan["simulated"]["over_form"].get<double>(), 1e-9);
    }
  }
  EXPECT_GT(plans, 6);
  const std::string csv = fakes::read_file(out + "/frontier.csv");
  EXPECT_THAT(csv.substr(0, csv.find('\n')), AllOf(HasSubstr("training_days,"), HasSubstr(",simulated_days,")));
}

TEST(Paper, TheFrontierEndsWithTheMostGpus) {
  const std::string out = fakes::folder() + "/figures";
  const Ended ended = lamina_command(
      {"paper", "--figure", "frontier", "--out", out, "--family", "8", "--max-gpus", "64", "--no-pictures"});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  const Json figure = Json::parse(fakes::read_file(out + "/frontier.json"));
  ASSERT_EQ(figure["links"]["ethernet"].size(), 1);
  EXPECT_EQ(figure["links"]["ethernet"][0]["gpus_at_most"], 64);
  EXPECT_TRUE(figure["links"]["ethernet"][0]["improved_days"].is_number());
}

TEST(Paper, BadInputIsOneLineAndTwo) {
  expect_complaint({"paper"}, "--out");
  expect_complaint({"paper", "--out", "f", "--figure", "frontiers"}, "did you mean frontier?");
  expect_complaint({"paper", "--out", "f", "--clusters", "nowhere"}, "nowhere: there is no such folder");
  expect_complaint({"paper", "--out", "f", "--family", "0", "--figure", "memory"}, "0");
  expect_complaint({"paper", "--out", "f", "--batch-law", "moore"}, "moore");
  EXPECT_FALSE(std::filesystem::exists("f"));
}

// ---- link --------------------------------------------------------------------------------------------------------

TEST(Link, EmulatedIsReturnedWithinThreePercent) {
  const EmulatedLink link{1e8, 0.02};
  LinkMeasureOptions options;
  options.most_bytes = std::int64_t{1} << 20;
  options.least_bytes = options.most_bytes / 4;
  const LinkMeasurement measured = measure_threads(2, link, options);
  ASSERT_TRUE(measured.estimate);
  EXPECT_NEAR(measured.estimate->bandwidth_bits_per_s / link.bandwidth_bits_per_s, 1, 0.03);
  EXPECT_NEAR(measured.estimate->latency_s / link.latency_s, 1, 0.03);
}

TEST(Link, CountsBandwidthAsNcclTestsDo) {
  LinkMeasureOptions options;
  options.most_bytes = 4096;
  options.seconds_a_size = 0.001;
  const LinkMeasurement measured = measure_threads(3, {}, options);
  int sends = 0, collectives = 0;
  for (const LinkSample& sample : measured.samples) {
    EXPECT_TRUE(sample.correct) << sample.operation << " " << sample.bytes;
    EXPECT_GE(sample.repetitions, 3);
    EXPECT_NEAR(sample.algorithm_bytes_per_s, static_cast<double>(sample.bytes) / sample.time_s, 1e-6);
    const double share = sample.operation == "send" ? 1.0 : sample.operation == "all_reduce" ? 4.0 / 3 : 2.0 / 3;
    EXPECT_NEAR(sample.bus_bytes_per_s / sample.algorithm_bytes_per_s, share, 1e-9) << sample.operation;
    EXPECT_EQ(sample.operation == "send" ? 0 : sample.bytes % 12, 0);
    sends += sample.operation == "send";
    collectives += sample.operation != "send";
  }
  EXPECT_EQ(sends, 2 * 10);  // two peers, 8 B to 4096 B
  EXPECT_EQ(collectives, 3 * 10);
  EXPECT_THAT(link_table(measured), AllOf(HasSubstr("algbw GB/s"), HasSubstr("busbw GB/s"), HasSubstr("send 0 to 2")));
}

TEST(Link, OfOneRankIsNull) {
  const LinkMeasurement measured = measure_threads(1, {}, {});
  EXPECT_FALSE(measured.estimate);
  EXPECT_TRUE(measured.samples.empty());
  EXPECT_TRUE(link_json(measured)["bandwidth_bits_per_s"].is_null());
  const std::string file = fakes::folder() + "/link.json";
  const Ended ended = lamina_command({"link", "--ranks", "1", "--json", file});
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(Json::parse(fakes::read_file(file))["latency_s"].is_null());
  expect_complaint({"link", "--ranks", "1", "--json", file}, "link.json exists; --force replaces it");
  EXPECT_THAT(ended.output, HasSubstr("one rank: nothing is sent"));
}

TEST(Link, BadInputIsOneLineAndTwo) {
  expect_complaint({"link", "--ranks", "0"}, "0");
  expect_complaint({"link", "--preset", "ethernet-25"}, "did you mean ethernet-25g?");
  expect_complaint({"link", "--preset", "ethernet-25g", "--latency-s", "1"}, "--latency-s excludes --preset");
  expect_complaint({"link", "--latency-s", "nan"}, "nan is not a number from 0 to 10");
  expect_complaint({"link", "--json", "nowhere/link.json"}, "there is no folder nowhere");
  expect_complaint({"link", "--min-bytes", "64", "--max-bytes", "32"}, "sizes from 64 to 32 bytes");
  expect_complaint({"link", "--bandwidth-bits-per-s", "-1"}, "-1");
  expect_complaint({"link", "--cluster", "c.json"}, "--force");
  expect_complaint({"link", "--collectives", "library"}, "between threads there is no library");
  expect_complaint({"link", "--collectives", "tree"}, "--collectives: tree not in {ring,library}");
}

// ---- calibrate ---------------------------------------------------------------------------------------------------

// The bandwidth of a table's last line, which has four digits of it.
double printed_bandwidth(const std::string& output) {
  const std::string before = "bandwidth ";
  const std::size_t at = output.rfind(before);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? 0 : std::atof(output.c_str() + at + before.size());
}

TEST(Calibrate, TimesEveryOpAndWritesAClusterThatCanBeSimulated) {
  Json document = fakes::small_scenario();
  document["transport"] = {{"link", {{"bandwidth_bits_per_s", 1e8}, {"latency_s", 1e-3}}}};
  const std::string folder = fakes::folder();
  const std::string scenario = fakes::write_file(folder + "/s.json", document.dump());
  const std::string cluster_file = folder + "/here.json";
  const Ended ended = lamina_command({"calibrate", scenario, "--cluster", cluster_file});
  ASSERT_EQ(ended.code, 0) << ended.errors;
  for (const char* unit : {"layer      forward", "layer      backward", "layer      update", "head       loss",
                           "head       update", "embedding  forward", "embedding  backward", "embedding  update"}) {
    EXPECT_THAT(ended.output, HasSubstr(unit));
  }
  const Cluster cluster = analysis::read_cluster(cluster_file);
  EXPECT_GT(printed_bandwidth(ended.output), 0);
  EXPECT_NEAR(cluster.network.bandwidth_bits_per_s.value / printed_bandwidth(ended.output), 1, 1e-3);
  EXPECT_GT(cluster.device.peak_flops_per_s.at("fp32").value, 1e6);
  EXPECT_GT(share_of_peak(cluster.device, 4), 0);
  EXPECT_EQ(cluster.node_size.value, 2);
  document.erase("transport");
  document["executor"] = "simulate";
  document["cluster"] = "here.json";
  const std::string simulated = fakes::write_file(folder + "/simulated.json", document.dump());
  EXPECT_EQ(lamina_command({"run", simulated, "--out", folder + "/out"}).code, 0);
  expect_complaint({"calibrate", scenario, "--cluster", cluster_file}, "exists; --force replaces it");
  expect_complaint({"calibrate", simulated}, "calibration trains on this machine");

  const Ended link = lamina_command({"link", "--bandwidth-bits-per-s", "2e8", "--min-bytes", "131072", "--max-bytes",
                                     "262144", "--seconds", "0.02", "--cluster", cluster_file, "--force"});
  EXPECT_EQ(link.code, 0) << link.errors;
  EXPECT_NEAR(analysis::read_cluster(cluster_file).network.bandwidth_bits_per_s.value / printed_bandwidth(link.output),
              1, 1e-3);
}

TEST(Calibrate, SeesCommunicationBesideCompute) {
  Json document = fakes::small_scenario();
  document["model"]["hidden"] = 128;
  document["transport"] = {{"link", {{"bandwidth_bits_per_s", 1e8}}}};
  const Backend backend = real_backend();
  std::FILE* output = std::tmpfile();
  Reporter reporter(output, output);
  const Calibration calibration = calibrate(prepare(fakes::read(document), backend), backend, reporter);
  std::fclose(output);
  EXPECT_EQ(calibration.ranks, 2);
  for (const OpTiming& timing : calibration.ops) {
    EXPECT_GT(timing.samples, 0);
    EXPECT_GE(timing.alone.high, timing.alone.low);
    if (timing.unit == "layer" && timing.kind == "backward") {
      EXPECT_TRUE(timing.beside);  // ZeRO-3 gathers and reduces beside it
    }
  }
}

}  // namespace
}  // namespace lamina
