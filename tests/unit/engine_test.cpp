// The engine on the threads transport: every plan trains what one rank trains; traffic in literal numbers; failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "impl/engine/deadline.h"
#include "impl/engine/rank_threads.h"
#include "impl/engine/train.h"
#include "impl/schedule/verify.h"
#include "tests/unit/equivalence.h"
#include "tests/unit/schedule_cases.h"

namespace lamina {
namespace {

using lamina::testing::read_sequences;
using lamina::testing::SingleRank;
using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 3;
constexpr std::int64_t kSeed = 5;

TrainRequest request_of(const ScheduleCase& c, const ModelShape& shape) {
  TrainRequest request;
  request.schedule = build_schedule(method_named(c.method), plan_of(c, shape));
  verify(request.schedule);
  request.precision = precision_of(RealType::fp64);
  request.optimizer = {.kind = OptimizerConfig::Kind::sgd, .learning_rate = 0.1};
  request.data = {.kind = DataConfig::Kind::synthetic, .path = "", .seed = 2};
  request.seed = kSeed;
  request.measured_steps = kSteps;
  request.dump = DumpConfig{.step = 0, .gradients = "gradients.safetensors", .weights = "weights.safetensors"};
  return request;
}

// Step after step on one rank, without a schedule.
struct SingleRun {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> first_gradients;
};
SingleRun single_run(const ModelShape& shape, const TrainRequest& request) {
  const Plan& plan = request.schedule.plan;
  const auto source = open_token_source(request.data, shape.sequence, shape.vocabulary, request.seed);
  SingleRank<double> rank(shape, 1, Recompute::none);
  rank.initialize(request.seed);
  const auto all = read_sequences(*source, shape.sequence, kSteps * plan.global_batch());
  SingleRun run;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    lamina::testing::Sequences batch{.sequence = shape.sequence};
    const auto tokens = plan.global_batch() * shape.sequence;
    batch.tokens.assign(all.tokens.begin() + step * tokens, all.tokens.begin() + (step + 1) * tokens);
    batch.targets.assign(all.targets.begin() + step * tokens, all.targets.begin() + (step + 1) * tokens);
    run.losses.push_back(rank.forward_backward(batch));
    run.norms.push_back(rank.gradient_norm());
    if (step == 0) {
      run.first_gradients = rank.gradients();
    }
    rank.update(request.optimizer, step + 1);
  }
  return run;
}

void expect_trains_like_one_rank(const ScheduleCase& c, ModelShape shape) {
  SCOPED_TRACE(to_string(c));
  shape.layers = c.layers;
  const TrainRequest request = request_of(c, shape);
  const TrainOutcome outcome = train(request, nullptr);
  const SingleRun wanted = single_run(shape, request);
  ASSERT_EQ(outcome.steps.size(), static_cast<std::size_t>(kSteps));
  for (std::size_t step = 0; step < outcome.steps.size(); ++step) {
    ASSERT_NEAR(outcome.steps[step].loss, wanted.losses[step], 1e-12 * wanted.losses[step]) << "step " << step;
    ASSERT_NEAR(outcome.steps[step].gradient_norm, wanted.norms[step], 1e-11 * wanted.norms[step]) << "step " << step;
  }
  const auto dumped = read_safetensors("gradients.safetensors");
  ASSERT_EQ(dumped.size(), wanted.first_gradients.size());
  for (const auto& [name, values] : wanted.first_gradients) {
    const auto& ours = dumped.at(name).values;
    ASSERT_EQ(ours.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(ours[i], values[i], 1e-13) << name << " element " << i;
    }
  }
  EXPECT_EQ(outcome.layers_built, c.layers);
  EXPECT_EQ(outcome.parameters_built, model_parameters(shape));
}

constexpr ModelShape kOdd{.layers = 0, .hidden = 6, .heads = 1, .sequence = 3, .vocabulary = 97};

TEST(EngineTest, DataParallelAndLayeredOnOneToFiveRanks) {
  for (const std::int64_t data : {1, 2, 3, 5}) {
    for (const std::int64_t sequence : {1, 2, 5}) {
      ModelShape shape = kOdd;
      shape.sequence = sequence;
      expect_trains_like_one_rank({.method = "data_parallel", .layers = 2, .micro_batches = 3, .data = data}, shape);
      for (const std::int64_t groups : {1, 2, 4}) {
        expect_trains_like_one_rank(
            {.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = data, .groups = groups}, shape);
      }
    }
  }
}

// Each pair of (method, ZeRO stage), (stage, recomputation), (ranks, micro-batches) … at least once.
TEST(EngineTest, PipelinesAndZeroStagesOnTwoToEightRanks) {
  const std::vector<ScheduleCase> cases{
      {.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 7, .zero_stage = 1},
      {.method = "data_parallel", .layers = 3, .micro_batches = 3, .data = 2, .zero_stage = 2},
      {.method = "data_parallel",
       .layers = 4,
       .micro_batches = 3,
       .data = 5,
       .zero_stage = 3,
       .recompute = Recompute::full},
      {.method = "data_parallel", .layers = 2, .micro_batches = 4, .data = 1, .zero_stage = 2, .resident_layers = 0},
      {.method = "layered_accumulation",
       .layers = 5,
       .micro_batches = 4,
       .data = 3,
       .groups = 2,
       .zero_stage = 3,
       .resident_layers = 1},
      {.method = "layered_accumulation",
       .layers = 4,
       .micro_batches = 3,
       .data = 2,
       .zero_stage = 2,
       .recompute = Recompute::selective,
       .keep_full_gradient = true},
      {.method = "layered_accumulation", .layers = 4, .micro_batches = 3, .data = 1, .zero_stage = 3},
      {.method = "gpipe", .layers = 5, .micro_batches = 3, .data = 1, .pipeline = 4},
      {.method = "gpipe", .layers = 4, .micro_batches = 2, .data = 2, .pipeline = 2, .zero_stage = 3},
      {.method = "one_f_one_b", .layers = 4, .micro_batches = 5, .data = 2, .pipeline = 2, .zero_stage = 1},
      {.method = "one_f_one_b",
       .layers = 7,
       .micro_batches = 2,
       .data = 2,
       .pipeline = 3,
       .zero_stage = 2,
       .recompute = Recompute::full},
      {.method = "interleaved_one_f_one_b", .layers = 8, .micro_batches = 5, .data = 1, .pipeline = 2, .chunks = 3},
      {.method = "interleaved_one_f_one_b", .layers = 8, .micro_batches = 4, .data = 2, .pipeline = 4, .zero_stage = 3},
      {.method = "modular_pipeline", .layers = 5, .micro_batches = 4, .data = 2, .pipeline = 2, .zero_stage = 3},
      {.method = "modular_pipeline",
       .layers = 7,
       .micro_batches = 3,
       .data = 2,
       .pipeline = 3,
       .zero_stage = 3,
       .recompute = Recompute::full},
      {.method = "modular_pipeline", .layers = 8, .micro_batches = 6, .data = 1, .pipeline = 4, .groups = 2},
      {.method = "modular_pipeline", .layers = 6, .micro_batches = 2, .data = 2, .pipeline = 4, .zero_stage = 2},
  };
  for (const ScheduleCase& c : cases) {
    expect_trains_like_one_rank(c, kOdd);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// The masked golden batch (targets of -1) through the whole engine, float and double, on 1, 2 and 4 ranks.
TEST(EngineTest, GoldenLossesOnSeveralRanks) {
  const std::string folder = LAMINA_TEST_DATA_DIR "/golden/masked/";
  const auto expected = nlohmann::json::parse(std::ifstream(folder + "expected.json"));
  const ModelShape shape{.layers = expected["model"]["layers"],
                         .hidden = expected["model"]["hidden"],
                         .heads = expected["model"]["heads"],
                         .sequence = expected["model"]["sequence"],
                         .vocabulary = expected["model"]["vocabulary"]};
  const std::int64_t batch = expected["model"]["batch"];
  for (const std::int64_t data : {1, 2, 4}) {
    for (const char* kind : {"sgd", "adamw"}) {
      for (const RealType real : {RealType::fp64, RealType::fp32}) {
        TrainRequest request = request_of(
            {.method = "layered_accumulation", .layers = shape.layers, .micro_batches = batch / data, .data = data},
            shape);
        request.precision = precision_of(real);
        request.data = {.kind = DataConfig::Kind::json_file, .path = folder + "batch.json", .seed = 1};
        request.initial_weights = folder + "weights.safetensors";
        request.measured_steps = 6;
        request.dump.reset();
        const auto& parameters = expected[kind];
        request.optimizer.kind =
            std::string_view(kind) == "sgd" ? OptimizerConfig::Kind::sgd : OptimizerConfig::Kind::adamw;
        request.optimizer.learning_rate = parameters["learning_rate"];
        request.optimizer.weight_decay = parameters.value("weight_decay", 0.0);
        const TrainOutcome outcome = train(request, nullptr);
        const double tolerance = real == RealType::fp64 ? 1e-11 : 1e-5;
        for (std::size_t step = 0; step < 6; ++step) {
          const double wanted = parameters["losses"][step];
          EXPECT_NEAR(outcome.steps[step].loss, wanted, tolerance * wanted)
              << kind << " on " << data << " ranks in " << name_of(real) << ", step " << step;
        }
      }
    }
  }
}

// hidden 6, sequence 3, vocabulary 97: a layer has 12·36 + 13·6 = 510 parameters, the embedding (97 + 3)·6 = 600, the
// head (97 + 2)·6 = 594. Numbers worked out by hand, in elements of 8 bytes; per rank and step.
struct TrafficCase {
  ScheduleCase plan;
  std::int64_t layers_reduce, layers_gather, embedding_reduce, embedding_gather, head_reduce, head_gather;
};

TEST(EngineTest, TrafficInLiteralNumbers) {
  const auto with_micro_batches = [](ScheduleCase c, std::int64_t m) {
    c.micro_batches = m;
    return c;
  };
  const ScheduleCase depth_first{.method = "data_parallel", .layers = 3, .data = 2};
  const ScheduleCase layered{.method = "layered_accumulation", .layers = 3, .data = 2};
  ScheduleCase on_five = layered;
  on_five.data = 5;
  std::vector<TrafficCase> cases;
  // Two ranks, no ZeRO: each of 3 layers is all-reduced once, 2·(1/2)·510 = 510 elements, whatever m is.
  for (const std::int64_t m : {1, 2, 4, 8}) {
    cases.push_back({with_micro_batches(depth_first, m), 1530, 0, 600, 0, 594, 0});
    cases.push_back({with_micro_batches(layered, m), 1530, 0, 600, 0, 594, 0});
  }
  // Five ranks: 510, 600 and 595 (594 padded) elements, each twice 4/5 of it.
  cases.push_back({with_micro_batches(on_five, 2), 2448, 0, 960, 0, 952, 0});
  // ZeRO-1: one gather and one reduce-scatter of half a layer's 510 = 255 each.
  ScheduleCase zero1 = depth_first;
  zero1.zero_stage = 1;
  cases.push_back({with_micro_batches(zero1, 4), 765, 765, 300, 300, 297, 297});
  // ZeRO-2: depth-first reduces every micro-batch (8 · 3 · 255), layered once; or once where the gradient is kept.
  ScheduleCase zero2 = depth_first;
  zero2.zero_stage = 2;
  cases.push_back({with_micro_batches(zero2, 8), 6120, 765, 2400, 300, 2376, 297});
  zero2.keep_full_gradient = true;
  cases.push_back({with_micro_batches(zero2, 8), 765, 765, 300, 300, 297, 297});
  // ZeRO-3, one resident layer: 2nK - (2n - 1) gathers; K = 3, so 5 for n = 1 and 9 - … 2·4·3 - 7 = 17 for n = m = 4.
  for (const auto& [base, m, gathers, reductions] : {std::tuple{layered, 1, 5, 1},
                                                     {layered, 4, 5, 1},
                                                     {layered, 8, 5, 1},
                                                     {depth_first, 1, 5, 1},
                                                     {depth_first, 2, 9, 2},
                                                     {depth_first, 4, 17, 4},
                                                     {depth_first, 8, 33, 8}}) {
    ScheduleCase c = with_micro_batches(base, m);
    c.zero_stage = 3;
    c.resident_layers = 1;
    cases.push_back({c, reductions * 765, gathers * 255, reductions * 300, 300, reductions * 297, 297});
  }
  for (const TrafficCase& c : cases) {
    SCOPED_TRACE(to_string(c.plan));
    ModelShape shape = kOdd;
    shape.layers = 3;
    TrainRequest request = request_of(c.plan, shape);
    request.measured_steps = 2;
    request.dump.reset();
    const TrainOutcome outcome = train(request, nullptr);
    for (const StepRecord& step : outcome.steps) {
      for (const StepTraffic& traffic : step.rank_traffic) {
        const auto elements = [&](TrafficKind kind, UnitKind unit) {
          return traffic.bytes[static_cast<std::size_t>(kind)][static_cast<std::size_t>(unit)] / 8;
        };
        EXPECT_EQ(elements(TrafficKind::data_reduce, UnitKind::layer), c.layers_reduce);
        EXPECT_EQ(elements(TrafficKind::data_gather, UnitKind::layer), c.layers_gather);
        EXPECT_EQ(elements(TrafficKind::data_reduce, UnitKind::embedding), c.embedding_reduce);
        EXPECT_EQ(elements(TrafficKind::data_gather, UnitKind::embedding), c.embedding_gather);
        EXPECT_EQ(elements(TrafficKind::data_reduce, UnitKind::head), c.head_reduce);
        EXPECT_EQ(elements(TrafficKind::data_gather, UnitKind::head), c.head_gather);
      }
    }
  }
}

// What a pipeline sends: 3 elements · hidden 6 = 18 a boundary, micro-batch and direction.
TEST(EngineTest, PipelineTrafficInLiteralNumbers) {
  ModelShape shape = kOdd;
  shape.layers = 4;
  const auto sent = [&](const ScheduleCase& c) {
    TrainRequest request = request_of(c, shape);
    request.measured_steps = 1;
    const TrainOutcome outcome = train(request, nullptr);
    std::int64_t bytes = 0;
    for (const StepTraffic& traffic : outcome.steps[0].rank_traffic) {
      for (const std::int64_t of_unit : traffic.bytes[static_cast<std::size_t>(TrafficKind::pipeline_send)]) {
        bytes += of_unit;
      }
    }
    return bytes / 8 / 18;
  };
  // Three micro-batches, both directions: one boundary in an ordinary pipeline of two, 2·2 - 1 with two chunks a rank,
  // 4 - 1 in a modular one.
  EXPECT_EQ(sent({.method = "gpipe", .layers = 4, .micro_batches = 3, .pipeline = 2}), 6);
  EXPECT_EQ(sent({.method = "one_f_one_b", .layers = 4, .micro_batches = 3, .pipeline = 2}), 6);
  EXPECT_EQ(sent({.method = "interleaved_one_f_one_b", .layers = 4, .micro_batches = 3, .pipeline = 2}), 18);
  EXPECT_EQ(sent({.method = "modular_pipeline", .layers = 4, .micro_batches = 3, .pipeline = 2}), 18);
}

TEST(EngineTest, TheSamePlanTwiceGivesTheSameBits) {
  ModelShape shape = kOdd;
  shape.layers = 3;
  TrainRequest request =
      request_of({.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = 3}, shape);
  request.precision = precision_of(RealType::fp32);
  const TrainOutcome first = train(request, nullptr);
  const TrainOutcome second = train(request, nullptr);
  for (std::size_t step = 0; step < first.steps.size(); ++step) {
    EXPECT_EQ(first.steps[step].loss, second.steps[step].loss);
    EXPECT_EQ(first.steps[step].gradient_norm, second.steps[step].gradient_norm);
  }
}

// What is planned without allocating is what every rank then holds.
TEST(EngineTest, PlannedMemoryIsWhatRanksHold) {
  ModelShape shape = kOdd;
  shape.layers = 4;
  for (const RealType real : {RealType::fp64, RealType::fp32, RealType::bf16, RealType::fp16}) {
    for (const int zero_stage : {0, 1, 2, 3}) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        TrainRequest request = request_of({.method = "modular_pipeline",
                                           .layers = 4,
                                           .micro_batches = 2,
                                           .data = 2,
                                           .pipeline = 2,
                                           .zero_stage = zero_stage,
                                           .recompute = recompute,
                                           .update_after_norm = real == RealType::fp16},
                                          shape);
        request.optimizer.kind = OptimizerConfig::Kind::adamw;
        request.precision = precision_of(real);
        request.precision.loss_scale = 1;
        request.measured_steps = 1;
        request.dump.reset();
        const TrainOutcome outcome = train(request, nullptr);
        for (std::int64_t rank = 0; rank < 4; ++rank) {
          const Coordinates at = coordinates_of(rank, request.schedule.plan.parallel);
          const RankMemory planned =
              planned_memory(request.schedule, at.pipeline, at.data, request.optimizer, request.precision, 1);
          const RankMemory& held = outcome.rank_memory[static_cast<std::size_t>(rank)];
          EXPECT_EQ(planned.parameters, held.parameters);
          EXPECT_EQ(planned.gradients, held.gradients);
          EXPECT_EQ(planned.optimizer, held.optimizer);
          EXPECT_EQ(planned.checkpoints, held.checkpoints);
          EXPECT_EQ(planned.working_set, held.working_set);
          EXPECT_EQ(planned.gathered, held.gathered);
        }
      }
    }
  }
}

// Ranks keep time by one clock: nothing arrives before it is sent, however quick the messages are.
TEST(EngineTest, TracesOfRanksBeginTogether) {
  TrainRequest request = request_of({.method = "modular_pipeline", .layers = 4, .micro_batches = 6, .pipeline = 2},
                                    {.layers = 0, .hidden = 2, .heads = 1, .sequence = 1, .vocabulary = 3});
  request.dump.reset();
  request.trace = true;
  request.measured_steps = request.traced_steps = 20;
  const TrainOutcome outcome = train(request, nullptr);
  // [step, sender, gradients]: when the sends of a direction begin and its receives end, in their order
  std::map<std::tuple<std::int32_t, std::int32_t, bool>, std::array<std::vector<double>, 2>> messages;
  for (const TraceEvent& event : outcome.trace) {
    const Op& op =
        request.schedule.programs.at(static_cast<std::size_t>(event.rank)).ops.at(static_cast<std::size_t>(event.op));
    if (op.kind == OpKind::send) {
      messages[{event.step, event.rank, is_backward(op.stream)}][0].push_back(event.start_s);
    } else if (op.kind == OpKind::receive) {
      messages[{event.step, op.peer, is_backward(op.stream)}][1].push_back(event.end_s);
    }
  }
  EXPECT_EQ(messages.size(), 20 * 4);
  for (const auto& [key, times] : messages) {
    ASSERT_EQ(times[0].size(), times[1].size());
    for (std::size_t i = 0; i < times[0].size(); ++i) {
      EXPECT_LE(times[0][i], times[1][i]);
    }
  }
}

TEST(EngineTest, ATraceHoldsTheLastStepsAlone) {
  ModelShape shape = kOdd;
  shape.layers = 1;
  TrainRequest request = request_of({.method = "data_parallel", .layers = 1, .micro_batches = 1, .data = 2}, shape);
  request.trace = true;
  request.warmup_steps = 2;
  const TrainOutcome outcome = train(request, nullptr);
  std::map<std::int32_t, std::size_t> events;  // by step
  for (const TraceEvent& event : outcome.trace) {
    ++events[event.step];
  }
  const std::size_t of_step = 2 * request.schedule.programs[0].ops.size();
  EXPECT_EQ(events, (std::map<std::int32_t, std::size_t>{{2, of_step}, {3, of_step}, {4, of_step}}));
}

TEST(EngineTest, OneRankExposesNoCommunication) {
  ModelShape shape = kOdd;
  shape.layers = 2;
  TrainRequest request = request_of({.method = "layered_accumulation", .layers = 2, .micro_batches = 2}, shape);
  for (const StepRecord& step : train(request, nullptr).steps) {
    EXPECT_EQ(step.rank_exposed_s, std::vector{0.0});
    EXPECT_GT(step.rank_time_s[0], 0);
  }
}

TEST(EngineTest, WithoutACountedTargetThereIsNoLoss) {
  ModelShape shape = kOdd;
  shape.layers = 1;
  TrainRequest request = request_of({.method = "data_parallel", .layers = 1, .micro_batches = 1, .data = 2}, shape);
  std::ofstream("none.json") << R"({"tokens": [[1, 2, 3]], "targets": [[-1, -1, -1]]})";
  request.data = {.kind = DataConfig::Kind::json_file, .path = "none.json", .seed = 1};
  const TrainOutcome outcome = train(request, nullptr);
  EXPECT_TRUE(std::isnan(outcome.steps[0].loss));
  EXPECT_EQ(outcome.steps[0].counted_targets, 0);
  EXPECT_EQ(outcome.steps[0].gradient_norm, 0);
}

// A link of 10 s latency is slow, not broken: a wait may last as long as all messages of a step one after the other.
TEST(EngineTest, TheDeadlineAllowsForTheLatencyOfEveryMessage) {
  ModelShape shape = kOdd;
  shape.layers = 2;
  TrainRequest request =
      request_of({.method = "modular_pipeline", .layers = 2, .micro_batches = 3, .pipeline = 2}, shape);
  EXPECT_EQ(longest_wait(request).count(), 10);
  request.link.latency_s = 10;
  // Three micro-batches over one boundary, there and back, are six messages.
  EXPECT_GE(longest_wait(request).count(), 6 * 10);
  request = request_of({.method = "data_parallel", .layers = 2, .micro_batches = 1, .data = 4}, shape);
  request.link.latency_s = 10;
  // Four units, all-reduced on a ring of four: six messages each.
  EXPECT_GE(longest_wait(request).count(), 4 * 6 * 10);
}

TEST(EngineTest, AFailingRankEndsAllWithItsCauseWithinSeconds) {
  ModelShape shape = kOdd;
  shape.layers = 3;
  for (const char* method : {"layered_accumulation", "modular_pipeline"}) {
    const bool pipeline = std::string_view(method) == "modular_pipeline";
    TrainRequest request = request_of(
        {.method = method, .layers = 3, .micro_batches = 2, .data = pipeline ? 1 : 3, .pipeline = pipeline ? 3 : 1},
        shape);
    request.disturbances = {{.kind = Disturbance::Kind::fail, .rank = 1, .step = 1}};
    const auto start = std::chrono::steady_clock::now();
    try {
      train(request, nullptr);
      FAIL() << "nothing thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1, step 1, forward"));
      EXPECT_THAT(error.what(), HasSubstr("this rank was asked to fail"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
}

// Without room for another stack, the ranks that did start must end, and with them the call. In a process of its own,
// whose memory can be limited; the sanitizers do not bear that.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void run_without_room_for_stacks() {
  constexpr int kRanks = 64;
  constexpr std::size_t kRoom = std::size_t{24} << 20;  // a few stacks of 8 MiB
  ThreadsFabric fabric(kRanks, {});
  std::vector<int> all(kRanks);
  std::iota(all.begin(), all.end(), 0);
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + kRoom;
  const rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
  run_on_threads(kRanks, fabric, [&](int rank) {
    try {
      while (fabric.abort_reason().empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      fabric.endpoint(rank).group(all);
    } catch (const std::exception&) {
    }
  });
  std::fprintf(stderr, "reason: %s\n", fabric.abort_reason().c_str());
  std::_Exit(7);
}

// More than any address space holds: the first rank to ask says so.
TEST(EngineTest, ARankWithoutMemoryIsNamed) {
  TrainRequest request = request_of({.method = "data_parallel", .layers = 1, .micro_batches = 1, .data = 2}, [] {
    ModelShape shape = kOdd;
    shape.layers = 1;
    return shape;
  }());
  request.dump.reset();
  request.schedule.plan.micro_batch_size = std::int64_t{1} << 50;
  try {
    train(request, nullptr);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::ContainsRegex("^rank [01]: out of memory"));
  }
}

TEST(EngineTest, ARankThatCannotBeStartedEndsAll) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_without_room_for_stacks(), ::testing::ExitedWithCode(7), "reason: rank [0-9]+ cannot be started: ");
}
#endif

TEST(EngineTest, ASleepingRankDoesNotHoldUpAnothersFailure) {
  ModelShape shape = kOdd;
  shape.layers = 2;
  TrainRequest request = request_of({.method = "data_parallel", .layers = 2, .micro_batches = 1, .data = 2}, shape);
  request.disturbances = {{.kind = Disturbance::Kind::sleep, .rank = 0, .sleep_s = 60},
                          {.kind = Disturbance::Kind::fail, .rank = 1, .step = 0}};
  const auto start = std::chrono::steady_clock::now();
  try {
    train(request, nullptr);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1, step 0"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(EngineTest, ClippingScalesTheWholeGradient) {
  ModelShape shape = kOdd;
  shape.layers = 2;
  const auto first_change = [&](double clip_norm, std::int64_t data, int zero_stage) {
    TrainRequest request = request_of({.method = "layered_accumulation",
                                       .layers = 2,
                                       .micro_batches = 6 / data,
                                       .data = data,
                                       .zero_stage = zero_stage,
                                       .update_after_norm = clip_norm > 0},
                                      shape);
    request.optimizer.clip_norm = clip_norm;
    const TrainOutcome outcome = train(request, nullptr);
    return std::pair{outcome.steps[0].gradient_norm, read_safetensors("weights.safetensors")};
  };
  const auto [norm, unclipped] = first_change(0, 1, 0);
  const auto [same_norm, clipped] = first_change(norm / 4, 1, 0);
  const auto [other_norm, clipped_on_three] = first_change(norm / 4, 3, 3);
  EXPECT_NEAR(same_norm, norm, 1e-12);
  EXPECT_NEAR(other_norm, norm, 1e-12);
  const std::string name = "transformer.h.1.mlp.c_fc.weight";
  std::vector<double> initial(static_cast<std::size_t>(unit_parameters(shape, layer_unit(1))));
  initialize_range(shape, layer_unit(1), kSeed, 0, std::ssize(initial), initial.data());
  const TensorLayout layout = unit_layout(shape, layer_unit(1))[8];
  ASSERT_EQ(layout.name, name);
  for (std::size_t i = 0; i < clipped.at(name).values.size(); ++i) {
    const double before = initial[static_cast<std::size_t>(layout.offset) + i];
    EXPECT_NEAR(4 * (clipped.at(name).values[i] - before), unclipped.at(name).values[i] - before, 1e-7);
    EXPECT_NEAR(clipped_on_three.at(name).values[i], clipped.at(name).values[i], 1e-13);
  }
}

TEST(EngineTest, ASecondRunStartsFromItsOwnMemory) {
  ModelShape shape = kOdd;
  shape.layers = 2;
  const TrainRequest request =
      request_of({.method = "data_parallel", .layers = 2, .micro_batches = 2, .data = 2}, shape);
  const TrainOutcome first = train(request, nullptr);
  const TrainOutcome second = train(request, nullptr);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(first.rank_memory[rank].total(), second.rank_memory[rank].total());
  }
  // Two layers of 510, embedding 600 and head 594 parameters of 8 bytes; as much gradient; SGD keeps no moments.
  EXPECT_EQ(first.rank_memory[0].parameters, (2 * 510 + 600 + 594) * 8);
  EXPECT_EQ(first.rank_memory[0].gradients, (2 * 510 + 600 + 594) * 8);
  EXPECT_EQ(first.rank_memory[0].optimizer, 0);
  // Depth-first: one micro-batch's input of each layer and of the head, 18 elements each.
  EXPECT_EQ(first.rank_memory[0].checkpoints, 3 * 18 * 8);
}

}  // namespace
}  // namespace lamina
