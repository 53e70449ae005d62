// Runs on a described cluster: what bandwidth and latency change, and the same bytes and memory as a real run.
#include "impl/harness/simulated_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "impl/analysis/cluster_file.h"
#include "impl/harness/runner.h"
#include "impl/schedule/verify.h"
#include "schedule_cases.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

using testing::HasSubstr;

constexpr ModelShape kModel{.layers = 0, .hidden = 64, .heads = 4, .sequence = 32, .vocabulary = 97};

Cluster cluster(double bandwidth_bits_per_s, double latency_s, double node_size = 1) {
  const Quantity whole{1, "test"};
  const Link link{.name = "link",
                  .bandwidth_bits_per_s = {bandwidth_bits_per_s, "test"},
                  .latency_s = {latency_s, "test"},
                  .efficiency = whole,
                  .capacity_bytes = {}};
  Cluster described;
  described.name = "test";
  described.device.name = "test";
  described.device.peak_flops_per_s["fp32"] = {1e9, "test"};
  described.device.peak_flops_per_s["fp64"] = {1e9, "test"};
  described.device.memory_bytes_per_s = {1e10, "test"};
  described.node_size = {node_size, "test"};
  described.node = link;
  described.network = link;
  return described;
}

const std::vector<ScheduleCase>& cases() {
  static const std::vector<ScheduleCase> all = [] {
    std::vector<ScheduleCase> list;
    for (const int zero_stage : {0, 1, 2, 3}) {
      for (const char* method : {"data_parallel", "layered_accumulation"}) {
        list.push_back({.method = method, .layers = 5, .micro_batches = 3, .data = 3, .zero_stage = zero_stage});
      }
      for (const char* method : {"gpipe", "one_f_one_b", "modular_pipeline"}) {
        list.push_back({.method = method,
                        .layers = 6,
                        .micro_batches = 4,
                        .data = 2,
                        .pipeline = 2,
                        .zero_stage = zero_stage,
                        .update_after_norm = true});
      }
    }
    return list;
  }();
  return all;
}

Schedule schedule_for(const ScheduleCase& c) {
  const Plan plan = plan_of(c, kModel);
  Schedule schedule = build_schedule(method_named(c.method), plan);
  verify(schedule);
  return schedule;
}

TrainRequest request_for(const ScheduleCase& c) {
  TrainRequest request;
  request.schedule = schedule_for(c);
  request.data.kind = DataConfig::Kind::synthetic;
  request.optimizer.kind = OptimizerConfig::Kind::adamw;
  request.optimizer.clip_norm = c.update_after_norm ? 1 : 0;
  request.trace = true;
  return request;
}

double busy_with_communication(const TrainRequest& request, const Cluster& described) {
  const TrainOutcome outcome = simulate_run(request, described);
  double busy = 0;
  for (const TraceEvent& event : outcome.trace) {
    const auto rank = coordinates_of(event.rank, request.schedule.plan.parallel).pipeline;
    const Op& op = request.schedule.programs[static_cast<std::size_t>(rank)].ops[static_cast<std::size_t>(event.op)];
    if (!is_compute(op.kind) && op.kind != OpKind::update) {
      busy += event.end_s - event.start_s;
    }
  }
  return busy;
}

TEST(Bandwidth, DoubledHalvesCommunicationAtZeroLatency) {
  for (const ScheduleCase& c : cases()) {
    const TrainRequest request = request_for(c);
    const double once = busy_with_communication(request, cluster(1e8, 0));
    const double twice = busy_with_communication(request, cluster(2e8, 0));
    EXPECT_GT(once, 0) << to_string(c);
    EXPECT_NEAR(once / twice, 2, 1e-9) << to_string(c);
  }
}

TEST(Bandwidth, InfiniteLeavesCompute) {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const ScheduleCase& c : cases()) {
    const TrainRequest request = request_for(c);
    EXPECT_EQ(busy_with_communication(request, cluster(infinite, 0)), 0) << to_string(c);
    const StepRecord step = simulate_run(request, cluster(infinite, 0)).steps.front();
    if (c.pipeline == 1) {
      EXPECT_NEAR(step.rank_exposed_s.front() / step.rank_time_s.front(), 0, 1e-12) << to_string(c);
    }
  }
}

TEST(Bandwidth, IsNothingToOneRank) {
  for (const char* method : {"data_parallel", "layered_accumulation", "gpipe", "modular_pipeline"}) {
    for (const int zero_stage : {0, 1, 2, 3}) {
      const ScheduleCase c{.method = method, .layers = 5, .micro_batches = 3, .zero_stage = zero_stage};
      const TrainRequest request = request_for(c);
      EXPECT_EQ(busy_with_communication(request, cluster(1e3, 1)), 0) << to_string(c);
      const StepRecord step = simulate_run(request, cluster(1e3, 1)).steps.front();
      EXPECT_EQ(step.rank_traffic.front(), StepTraffic{}) << to_string(c);
      EXPECT_EQ(step.rank_time_s, simulate_run(request, cluster(1e12, 0)).steps.front().rank_time_s) << to_string(c);
    }
  }
}

TEST(Latency, CountsOnceForEachRoundOfARing) {
  const ScheduleCase c{.method = "data_parallel", .layers = 1, .micro_batches = 1, .data = 4};
  const Schedule schedule = schedule_for(c);
  const OpCost with = cluster_costs(cluster(1e8, 0.5), schedule.plan, Precision{}, OptimizerConfig::Kind::sgd);
  const OpCost without = cluster_costs(cluster(1e8, 0), schedule.plan, Precision{}, OptimizerConfig::Kind::sgd);
  for (const Op& op : schedule.programs.front().ops) {
    const double rounds = op.kind == OpKind::all_reduce ? 6 : is_collective(op.kind) ? 3 : 0;
    EXPECT_NEAR(with(0, op) - without(0, op), 0.5 * rounds, 1e-9) << describe(op);
  }
}

TEST(Nodes, RanksOfOneNodeTalkOverItsLink) {
  Cluster described = cluster(1e8, 0, 4);
  described.node.bandwidth_bits_per_s.value = 1e10;
  const auto all_reduce_time = [&](std::int64_t data) {
    const Schedule schedule = schedule_for({.method = "data_parallel", .layers = 1, .micro_batches = 1, .data = data});
    const OpCost cost = cluster_costs(described, schedule.plan, Precision{}, OptimizerConfig::Kind::sgd);
    for (const Op& op : schedule.programs.front().ops) {
      if (op.kind == OpKind::all_reduce && op.unit == layer_unit(0)) {
        return cost(0, op) / static_cast<double>(op.elements) * static_cast<double>(data) /
               static_cast<double>(data - 1);
      }
    }
    return 0.0;
  };
  EXPECT_NEAR(all_reduce_time(4), 2 * 4 / (1e10 / 8), 1e-15);
  EXPECT_NEAR(all_reduce_time(5), 2 * 4 / (1e8 / 8), 1e-13);
}

TEST(Precision, WithoutARateOfTheDeviceIsRefused) {
  TrainRequest request = request_for(cases().front());
  Cluster described = cluster(1e8, 0);
  described.device.peak_flops_per_s.erase("fp32");
  EXPECT_THROW(simulate_run(request, described), UsageError);
}

// The engine counts what it sends and allocates; the simulation reads the same from the schedule.
TEST(Counters, AreThoseOfARealRun) {
  for (const ScheduleCase& c : cases()) {
    if (c.pipeline > 1 && c.zero_stage % 3 != 0) {
      continue;  // four of the twelve pipelines are enough to train
    }
    SCOPED_TRACE(to_string(c));
    TrainRequest request = request_for(c);
    if (c.zero_stage % 2 == 1) {  // half of them with 16-bit weights and fp32 masters
      request.precision = precision_of(RealType::bf16);
    }
    const TrainOutcome real = train(request, [](std::int64_t, const StepRecord&) {});
    Cluster described = cluster(1e8, 0);
    described.device.peak_flops_per_s["bf16"] = {1e9, "test"};
    const TrainOutcome simulated = simulate_run(request, described);
    ASSERT_EQ(real.rank_memory.size(), simulated.rank_memory.size());
    EXPECT_EQ(real.layers_built, simulated.layers_built);
    EXPECT_EQ(real.parameters_built, simulated.parameters_built);
    EXPECT_EQ(real.steps.front().counted_targets, simulated.steps.front().counted_targets);
    for (std::size_t rank = 0; rank < real.rank_memory.size(); ++rank) {
      const RankMemory& counted = real.rank_memory[rank];
      const RankMemory& read = simulated.rank_memory[rank];
      EXPECT_EQ(counted.parameters, read.parameters) << "rank " << rank;
      EXPECT_EQ(counted.gradients, read.gradients) << "rank " << rank;
      EXPECT_EQ(counted.checkpoints, read.checkpoints) << "rank " << rank;
      EXPECT_EQ(counted.gathered, read.gathered) << "rank " << rank;
      // The moments of padding are not kept for real.
      EXPECT_LE(counted.optimizer, read.optimizer) << "rank " << rank;
      EXPECT_GE(counted.optimizer, read.optimizer * 99 / 100) << "rank " << rank;
      EXPECT_EQ(real.steps.front().rank_traffic[rank], simulated.steps.front().rank_traffic[rank]) << "rank " << rank;
    }
  }
}

Json simulated_scenario() {
  Json document = fakes::small_scenario();
  document["executor"] = "simulate";
  document["cluster"] = LAMINA_TEST_DATA_DIR "/../scenarios/clusters/a100-80gb-ethernet-25g.json";
  document["expect"] =
      Json::parse(R"([{"metric": "step_time_s", "of": "depth-first", "over": "layered", "at_least": 1}])");
  return document;
}

TEST(SimulatedScenario, NeedsARateOfItsPrecision) {
  Json cluster =
      Json::parse(fakes::read_file(LAMINA_TEST_DATA_DIR "/../scenarios/clusters/a100-80gb-ethernet-25g.json"));
  cluster["device"]["peak_flops_per_s"].erase("fp32");
  Json document = simulated_scenario();
  document["cluster"] = std::filesystem::absolute(fakes::write_file("cluster_without_fp32.json", cluster.dump()));
  document["precision"] = {{"compute", "fp32"}};
  try {
    prepare(fakes::read(document), real_backend());
    FAIL() << "nothing was missing";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("has no peak rate for precision 'fp32'"));
  }
}

TEST(SimulatedScenario, GivesTheSameResultFileAndTrace) {
  const Backend backend = real_backend();
  const Experiment experiment = prepare(fakes::read(simulated_scenario()), backend);
  const std::string out = experiment.scenario.file + ".out";
  std::FILE* table = std::tmpfile();
  std::FILE* progress = std::tmpfile();
  {
    Reporter reporter(table, progress);
    EXPECT_EQ(run_experiment(experiment, backend, {out, false, true, {"lamina", "run"}}, reporter), kFine);
  }
  std::fclose(table);
  std::fclose(progress);
  const Json result = Json::parse(fakes::read_file(out + "/result.json"));
  for (const Json& run : result["runs"]) {
    EXPECT_EQ(run["status"], "ok");
    const Json& metrics = run["metrics"];
    EXPECT_EQ(metrics["step_time_s"]["samples"].size(), 1U);
    EXPECT_GT(metrics["step_time_s"]["median"], 0.0);
    EXPECT_GT(metrics["tokens_per_s"]["median"], 0.0);
    EXPECT_GE(metrics["exposed_communication_s"]["median"], 0.0);
    // Counted from the ops and by the form that does not look at them.
    EXPECT_EQ(metrics["traffic_bytes"]["per_rank"][0]["data"], metrics["traffic_bytes"]["predicted"][0]["data"]);
    EXPECT_EQ(metrics["peak_memory_bytes"]["per_rank"][0]["parameters"],
              metrics["peak_memory_bytes"]["predicted"][0]["parameters"]);
    EXPECT_TRUE(metrics["loss"][0].is_null());
    EXPECT_THAT(metrics["loss_reason"].get<std::string>(), HasSubstr("simulated"));
    EXPECT_EQ(run["link"]["source"], "cluster a100-80gb-ethernet-25g");
  }
  EXPECT_EQ(result["context"]["ranks"][0]["network"], "simulated");
  const Json trace = Json::parse(fakes::read_file(out + "/trace.json"));
  const auto slices = std::count_if(trace["traceEvents"].begin(), trace["traceEvents"].end(),
                                    [](const Json& event) { return event["ph"] == "X"; });
  std::size_t ops = 0;
  for (const PreparedRun& run : experiment.runs) {
    ops += run.schedule.programs.front().ops.size() * static_cast<std::size_t>(run.ranks());
  }
  EXPECT_EQ(static_cast<std::size_t>(slices), ops);
}

// The ranks are not here: what this machine could hold is no limit.
TEST(SimulatedScenario, MayNeedMoreMemoryThanThisMachineHas) {
  Json document = simulated_scenario();
  document["model"] = {{"layers", 8}, {"hidden", 32768}, {"heads", 64}, {"sequence", 2048}, {"vocabulary", 50000}};
  document["batch"]["global"] = 64;
  document["runs"][0]["parallel"]["data"] = 32;
  const Experiment experiment = prepare(fakes::read(document), real_backend());
  const Setting& setting = experiment.scenario.settings.front();
  const RankMemory memory =
      memory_of_slots(experiment.runs.front().schedule, 0, setting.precision, setting.optimizer.kind);
  EXPECT_GT(static_cast<double>(memory.total()) * 32, 10e12);
}

TEST(SimulatedScenario, ShippedOneIsAccepted) {
  EXPECT_EQ(prepare(read_scenario(LAMINA_TEST_DATA_DIR "/../scenarios/simulated-ethernet.json", {}), real_backend())
                .runs.size(),
            6U);
}

TEST(SimulatedScenario, BadInputIsOneLine) {
  const auto refused = [](const char* key, const Json& value) {
    Json document = simulated_scenario();
    document[key] = value;
    return fakes::refusal(document.dump());
  };
  EXPECT_THAT(refused("cluster", "none.json"), HasSubstr("none.json: cannot be read"));
  EXPECT_THAT(refused("cluster", 4), HasSubstr("cluster is 4"));
  EXPECT_THAT(refused("transport", Json::object()), HasSubstr("transport is only for executor train"));
  EXPECT_THAT(refused("search", Json::object()), HasSubstr("search is only for executor search"));
}

}  // namespace
}  // namespace lamina
