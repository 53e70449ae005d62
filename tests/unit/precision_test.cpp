// Weights, activations and wire in 16 bits: every plan stays as near to fp32 as the type allows, plans of the same type
// nearer still; what is stored, sent and kept beside; steps whose scaled gradients overflow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "impl/engine/train.h"
#include "impl/schedule/verify.h"
#include "tests/unit/schedule_cases.h"

namespace lamina {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSteps = 3;
constexpr ModelShape kShape{.layers = 0, .hidden = 6, .heads = 2, .sequence = 5, .vocabulary = 23};

// Distance of 1 to the next number.
double epsilon_of(RealType type) { return type == RealType::bf16 ? 0x1p-7 : 0x1p-10; }

// What came of a run: losses of all steps, gradients of the first, weights after the last.
struct Ran {
  TrainOutcome outcome;
  std::map<std::string, NamedTensor> gradients, weights;
};

TrainRequest request_of(ScheduleCase c, const Precision& precision) {
  c.update_after_norm = c.update_after_norm || precision.scales_loss();
  ModelShape shape = kShape;
  shape.layers = c.layers;
  TrainRequest request;
  request.schedule = build_schedule(method_named(c.method), plan_of(c, shape));
  verify(request.schedule);
  request.precision = precision;
  request.optimizer = {.kind = OptimizerConfig::Kind::sgd, .learning_rate = 0.1};
  request.data = {.kind = DataConfig::Kind::synthetic, .path = "", .seed = 2};
  request.seed = 5;
  request.measured_steps = kSteps;
  return request;
}

Ran run(TrainRequest request, std::int64_t dumped_step = 0) {
  request.dump = {.step = dumped_step, .gradients = "gradients.safetensors", .weights = "weights.safetensors"};
  Ran ran;
  ran.outcome = train(request, nullptr);
  ran.gradients = read_safetensors("gradients.safetensors");
  ran.weights = read_safetensors("weights.safetensors");
  return ran;
}

// The largest difference of an element, relative to the largest element of its unit.
double distance(const std::map<std::string, NamedTensor>& got, const std::map<std::string, NamedTensor>& wanted,
                const ModelShape& shape) {
  double worst = 0;
  for (const Unit unit : all_units(shape)) {
    double largest = 0, difference = 0;
    for (const TensorLayout& tensor : unit_layout(shape, unit)) {
      const auto& a = got.at(tensor.name).values;
      const auto& b = wanted.at(tensor.name).values;
      for (std::size_t i = 0; i < b.size(); ++i) {
        largest = std::max(largest, std::abs(b[i]));
        const double off = std::abs(a[i] - b[i]);
        difference = off <= difference ? difference : off;
        if (std::isnan(off)) {
          return HUGE_VAL;
        }
      }
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

ModelShape shape_of(const ScheduleCase& c) {
  ModelShape shape = kShape;
  shape.layers = c.layers;
  return shape;
}

std::vector<ScheduleCase> every_method() {
  using enum Recompute;
  return {
      {.method = "data_parallel", .layers = 3, .micro_batches = 4, .data = 1},
      {.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 2, .recompute = full},
      {.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 2, .zero_stage = 1, .recompute = selective},
      {.method = "data_parallel", .layers = 3, .micro_batches = 1, .data = 4, .zero_stage = 2},
      {.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 2, .zero_stage = 3, .recompute = full},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = 1, .groups = 2},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 2, .data = 2, .recompute = selective},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 3, .data = 3, .zero_stage = 1},
      {.method = "layered_accumulation",
       .layers = 3,
       .micro_batches = 2,
       .data = 2,
       .zero_stage = 2,
       .recompute = full,
       .keep_full_gradient = true},
      {.method = "layered_accumulation",
       .layers = 3,
       .micro_batches = 4,
       .data = 2,
       .groups = 2,
       .zero_stage = 3,
       .resident_layers = 1},
      {.method = "gpipe", .layers = 3, .micro_batches = 4, .data = 1, .pipeline = 3},
      {.method = "gpipe",
       .layers = 3,
       .micro_batches = 2,
       .data = 2,
       .pipeline = 2,
       .zero_stage = 3,
       .recompute = full},
      {.method = "one_f_one_b", .layers = 3, .micro_batches = 5, .data = 1, .pipeline = 2, .recompute = selective},
      {.method = "one_f_one_b", .layers = 3, .micro_batches = 3, .data = 2, .pipeline = 2, .zero_stage = 1},
      {.method = "one_f_one_b",
       .layers = 4,
       .micro_batches = 3,
       .data = 2,
       .pipeline = 2,
       .zero_stage = 2,
       .recompute = full},
      {.method = "interleaved_one_f_one_b",
       .layers = 4,
       .micro_batches = 4,
       .data = 1,
       .pipeline = 2,
       .recompute = full},
      {.method = "interleaved_one_f_one_b", .layers = 4, .micro_batches = 4, .data = 2, .pipeline = 2, .zero_stage = 3},
      {.method = "modular_pipeline", .layers = 4, .micro_batches = 4, .data = 1, .pipeline = 4},
      {.method = "modular_pipeline",
       .layers = 5,
       .micro_batches = 2,
       .data = 2,
       .pipeline = 2,
       .zero_stage = 2,
       .recompute = selective},
      {.method = "modular_pipeline",
       .layers = 5,
       .micro_batches = 3,
       .data = 2,
       .pipeline = 2,
       .zero_stage = 3,
       .recompute = full},
  };
}

class SixteenBitRuns : public ::testing::TestWithParam<RealType> {
 protected:
  Precision precision(bool narrow_reduction = false) const {
    Precision result = precision_of(GetParam());
    result.reduce = narrow_reduction ? result.compute : result.reduce;
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, SixteenBitRuns, ::testing::Values(RealType::bf16, RealType::fp16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// Observed: gradients off by at most 1.5 epsilons of the unit's largest element, losses by 0.003, weights by 0.25.
TEST_P(SixteenBitRuns, EveryMethodStaysWithinAFewEpsilonsOfFp32) {
  const double epsilon = epsilon_of(GetParam());
  double worst_gradient = 0, worst_loss = 0, worst_weight = 0;
  for (const ScheduleCase& c : every_method()) {
    const Ran wanted = run(request_of(c, precision_of(RealType::fp32)), kSteps - 1);
    const Ran wanted_first = run(request_of(c, precision_of(RealType::fp32)));
    for (const bool narrow_reduction : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, reduction in {}", to_string(c), narrow_reduction ? "16 bits" : "fp32"));
      const TrainRequest request = request_of(c, precision(narrow_reduction));
      const Ran first = run(request);
      const Ran last = run(request, kSteps - 1);
      const double gradient = distance(first.gradients, wanted_first.gradients, shape_of(c)) / epsilon;
      const double weight = distance(last.weights, wanted.weights, shape_of(c)) / epsilon;
      worst_gradient = std::max(worst_gradient, gradient);
      worst_weight = std::max(worst_weight, weight);
      EXPECT_LE(gradient, 4);
      EXPECT_LE(weight, 0.5);
      for (std::size_t step = 0; step < kSteps; ++step) {
        const StepRecord& ours = last.outcome.steps[step];
        const StepRecord& theirs = wanted.outcome.steps[step];
        const double loss = std::abs(ours.loss - theirs.loss) / theirs.loss / epsilon;
        worst_loss = std::max(worst_loss, loss);
        EXPECT_LE(loss, 0.02) << "step " << step;
        EXPECT_NEAR(ours.gradient_norm, theirs.gradient_norm, 2 * epsilon * theirs.gradient_norm) << "step " << step;
        EXPECT_FALSE(ours.skipped);
        EXPECT_EQ(ours.loss_scale, GetParam() == RealType::fp16 ? 65536 : 1);
        // The same plan twice: the same bits.
        EXPECT_EQ(ours.loss, first.outcome.steps[step].loss);
        EXPECT_EQ(ours.gradient_norm, first.outcome.steps[step].gradient_norm);
      }
    }
  }
  std::printf("%s: gradients within %.2f, losses %.3f, weights %.3f epsilons of fp32\n",
              std::string(name_of(GetParam())).c_str(), worst_gradient, worst_loss, worst_weight);
}

// The roundings are the same: what is left is the order in which fp32 sums gradients.
TEST_P(SixteenBitRuns, StagesOfZeroDifferByTheOrderOfSummationAlone) {
  constexpr double kTolerance = 16 * 0x1p-23;
  for (const char* method : {"data_parallel", "layered_accumulation", "one_f_one_b", "modular_pipeline"}) {
    const bool pipeline = std::string_view(method) == "one_f_one_b" || std::string_view(method) == "modular_pipeline";
    ScheduleCase c{.method = method, .layers = 4, .micro_batches = 4, .data = 2, .pipeline = pipeline ? 2 : 1};
    const Ran wanted = run(request_of(c, precision()));
    for (c.zero_stage = 1; c.zero_stage <= 3; ++c.zero_stage) {
      SCOPED_TRACE(to_string(c));
      const Ran ran = run(request_of(c, precision()));
      EXPECT_LE(distance(ran.gradients, wanted.gradients, shape_of(c)), kTolerance);
      EXPECT_EQ(ran.outcome.steps[0].loss, wanted.outcome.steps[0].loss);
      EXPECT_LE(distance(ran.weights, wanted.weights, shape_of(c)), kTolerance);
    }
  }
}

// Updates of 1e-6 of the weights: a weight in 16 bits would never move. Sixty of them add up as they do in fp32.
TEST_P(SixteenBitRuns, MastersKeepUpdatesThatSixteenBitsWouldLose) {
  for (const int zero_stage : {0, 1, 3}) {
    const ScheduleCase c{
        .method = "layered_accumulation", .layers = 2, .micro_batches = 2, .data = 2, .zero_stage = zero_stage};
    const auto moved = [&](const Precision& precision) {
      TrainRequest request = request_of(c, precision);
      request.optimizer.learning_rate = 1e-5;
      request.measured_steps = 60;
      const auto begin = run(request, 0).weights;
      const auto end = run(request, 59).weights;
      std::vector<double> change;
      for (const auto& [name, tensor] : end) {
        for (std::size_t i = 0; i < tensor.values.size(); ++i) {
          change.push_back(tensor.values[i] - begin.at(name).values[i]);
        }
      }
      return change;
    };
    const std::vector<double> wanted = moved(precision_of(RealType::fp32));
    const std::vector<double> got = moved(precision());
    double off = 0, whole = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      off += (got[i] - wanted[i]) * (got[i] - wanted[i]);
      whole += wanted[i] * wanted[i];
    }
    EXPECT_GT(whole, 0);
    EXPECT_LE(std::sqrt(off / whole), 4 * epsilon_of(GetParam())) << "ZeRO-" << zero_stage;
  }
}

// 2 layers of 510, embedding (23 + 5)·6 = 168 and head (23 + 2)·6 = 150: 1338 parameters; on three ranks the layers and
// the embedding and the head divide: 446 a rank. Activations of 5·6 = 30 elements.
TEST_P(SixteenBitRuns, MemoryInLiteralNumbers) {
  const auto memory = [&](int zero_stage) {
    TrainRequest request = request_of(
        {.method = "data_parallel", .layers = 2, .micro_batches = 2, .data = 3, .zero_stage = zero_stage}, precision());
    request.optimizer.kind = OptimizerConfig::Kind::adamw;
    request.measured_steps = 1;
    return train(request, nullptr).rank_memory[1];
  };
  const RankMemory zero0 = memory(0);
  EXPECT_EQ(zero0.parameters, 2 * 1338);
  EXPECT_EQ(zero0.gradients, 4 * 1338);
  EXPECT_EQ(zero0.optimizer, 12 * 1338);  // masters and two moments
  EXPECT_EQ(zero0.checkpoints, 3 * 30 * 2);
  EXPECT_EQ(zero0.gathered, 0);
  const RankMemory zero1 = memory(1);
  EXPECT_EQ(zero1.parameters, 2 * 1338);
  EXPECT_EQ(zero1.gradients, 4 * 1338);
  EXPECT_EQ(zero1.optimizer, 12 * 446);
  const RankMemory zero2 = memory(2);
  EXPECT_EQ(zero2.parameters, 2 * 1338);
  EXPECT_EQ(zero2.gradients, 4 * 446);
  EXPECT_EQ(zero2.optimizer, 12 * 446);
  EXPECT_EQ(zero2.gathered, 4 * 1338);  // gradients of both layers, embedding and head before their reduction
  const RankMemory zero3 = memory(3);
  EXPECT_EQ(zero3.parameters, 2 * 446);
  EXPECT_EQ(zero3.gradients, 4 * 446);
  EXPECT_EQ(zero3.optimizer, 12 * 446);
  EXPECT_EQ(zero3.gathered, (2 + 4) * 1338);
}

// Bytes a rank sends in a step on two ranks, three layers: 510 elements a layer, 168 and 150 of embedding and head; a
// gather or reduction sends half of them once. A boundary of a pipeline: 30 elements each way and micro-batch.
TEST_P(SixteenBitRuns, TrafficInLiteralNumbers) {
  struct Sent {
    std::int64_t reduce, gather, pipeline;
    bool operator==(const Sent&) const = default;
  };
  const auto sent = [&](const ScheduleCase& c, bool narrow_reduction) {
    TrainRequest request = request_of(c, precision(narrow_reduction));
    const TrainOutcome outcome = train(request, nullptr);
    const auto of = [&](TrafficKind kind) {
      std::int64_t bytes = 0;
      for (const std::int64_t of_unit : outcome.steps[1].rank_traffic[0].bytes[static_cast<std::size_t>(kind)]) {
        bytes += of_unit;
      }
      return bytes;
    };
    return Sent{of(TrafficKind::data_reduce), of(TrafficKind::data_gather), of(TrafficKind::pipeline_send)};
  };
  ScheduleCase c{.method = "layered_accumulation", .layers = 3, .micro_batches = 2, .data = 2};
  // All-reduce: (1530 + 168 + 150) elements, twice half of each.
  EXPECT_EQ(sent(c, false), (Sent{7392, 0, 0}));
  EXPECT_EQ(sent(c, true), (Sent{3696, 0, 0}));
  c.zero_stage = 1;
  EXPECT_EQ(sent(c, false), (Sent{3696, 1848, 0}));
  EXPECT_EQ(sent(c, true), (Sent{1848, 1848, 0}));
  // ZeRO-3, one resident layer: 5 gathers of a layer (255 elements), one of embedding and head (84 and 75).
  c.zero_stage = 3;
  c.resident_layers = 1;
  EXPECT_EQ(sent(c, false), (Sent{3696, 2 * (5 * 255 + 84 + 75), 0}));
  // One boundary, forward, 3 micro-batches of 30 elements.
  const ScheduleCase pipeline{.method = "gpipe", .layers = 2, .micro_batches = 3, .data = 1, .pipeline = 2};
  EXPECT_EQ(sent(pipeline, false), (Sent{0, 0, 180}));
}

// ---- fp16's loss scale ----

// A batch of two sequences that every step sees again; only the first one's targets count.
std::string write_lopsided_batch() {
  nlohmann::json batch;
  for (int sample = 0; sample < 2; ++sample) {
    std::vector<int> tokens, targets;
    for (int i = 0; i < kShape.sequence; ++i) {
      tokens.push_back((7 * i + 3 * sample + 1) % 23);
      targets.push_back(sample == 0 ? (5 * i + 2) % 23 : -1);
    }
    batch["tokens"].push_back(tokens);
    batch["targets"].push_back(targets);
  }
  std::ofstream("batch.json") << batch;
  return "batch.json";
}

TrainRequest lopsided_request(ScheduleCase c, double loss_scale, std::int64_t steps) {
  Precision precision = precision_of(RealType::fp16);
  precision.reduce = RealType::fp16;
  precision.loss_scale = loss_scale;
  TrainRequest request = request_of(c, precision);
  request.data = {.kind = DataConfig::Kind::json_file, .path = write_lopsided_batch(), .seed = 1};
  request.optimizer = {.kind = OptimizerConfig::Kind::adamw, .learning_rate = 0.01, .weight_decay = 0.1};
  request.measured_steps = steps;
  return request;
}

// The least power of two at which the first of two steps is skipped.
double least_overflowing_scale(const ScheduleCase& c) {
  for (double scale = 65536; scale < 0x1p40; scale *= 2) {
    if (train(lopsided_request(c, scale, 2), nullptr).steps[0].skipped) {
      return scale;
    }
  }
  ADD_FAILURE() << "no scale overflows";
  return 1;
}

constexpr ScheduleCase two_ranks(int zero_stage) {
  return {.method = "layered_accumulation", .layers = 2, .micro_batches = 1, .data = 2, .zero_stage = zero_stage};
}

std::map<std::string, NamedTensor> initial_weights(const ModelShape& shape, std::int64_t seed) {
  std::map<std::string, NamedTensor> weights;
  for (const Unit unit : all_units(shape)) {
    std::vector<float> values(static_cast<std::size_t>(unit_parameters(shape, unit)));
    initialize_range(shape, unit, seed, 0, std::ssize(values), values.data());
    const std::vector<double> wide(values.begin(), values.end());
    for (NamedTensor& tensor : tensors_from_unit(shape, unit, wide)) {
      weights[tensor.name] = tensor;
    }
  }
  return weights;
}

// Whose part of a unit (of two ranks) holds a gradient that is not finite.
std::set<std::int64_t> ranks_with_overflow(const std::map<std::string, NamedTensor>& gradients,
                                           const ModelShape& shape) {
  std::set<std::int64_t> ranks;
  for (const Unit unit : all_units(shape)) {
    const std::int64_t part = padded(unit_parameters(shape, unit), 2) / 2;
    for (const TensorLayout& tensor : unit_layout(shape, unit)) {
      for (std::int64_t i = 0; i < tensor.elements; ++i) {
        if (!std::isfinite(gradients.at(tensor.name).values[static_cast<std::size_t>(i)])) {
          ranks.insert((tensor.offset + i) / part);
        }
      }
    }
  }
  return ranks;
}

// Rank 0 has all the gradient and rank 1 none: what rank 0 sends for rank 1's parts overflows on the way, what it keeps
// of its own is in fp32 and does not.
TEST(LossScale, AnOverflowOnOneRankSkipsTheStepOnAllAndHalvesTheScale) {
  for (const int zero_stage : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("ZeRO-{}", zero_stage));
    const ScheduleCase c = two_ranks(zero_stage);
    const double scale = least_overflowing_scale(c);
    const Ran skipped = run(lopsided_request(c, scale, 2), 0);
    EXPECT_EQ(ranks_with_overflow(skipped.gradients, shape_of(c)), std::set<std::int64_t>{1});
    const std::vector<StepRecord>& steps = skipped.outcome.steps;
    EXPECT_TRUE(steps[0].skipped);
    EXPECT_FALSE(std::isfinite(steps[0].gradient_norm));
    EXPECT_FALSE(steps[1].skipped);
    EXPECT_EQ(steps[0].loss_scale, scale);
    EXPECT_EQ(steps[1].loss_scale, scale / 2);
    EXPECT_EQ(steps[1].loss, steps[0].loss);  // the same batch, nothing was learnt
    for (const auto& [name, tensor] : initial_weights(shape_of(c), 5)) {
      ASSERT_EQ(skipped.weights.at(name).values, tensor.values) << name;  // on both ranks
    }
  }
}

// Weights, moments and the count of updates are as if the skipped step had not been.
TEST(LossScale, ASkippedStepLeavesNoTrace) {
  const ScheduleCase c = two_ranks(1);
  const double scale = least_overflowing_scale(c);
  const Ran after_skip = run(lopsided_request(c, scale, 3), 2);
  const Ran without = run(lopsided_request(c, scale / 2, 2), 1);
  EXPECT_TRUE(after_skip.outcome.steps[0].skipped);
  EXPECT_FALSE(without.outcome.steps[0].skipped);
  EXPECT_NE(without.outcome.steps[1].loss, without.outcome.steps[0].loss);
  for (const auto& [name, tensor] : without.weights) {
    ASSERT_EQ(after_skip.weights.at(name).values, tensor.values) << name;
  }
}

TEST(LossScale, DoublesAfterGoodSteps) {
  TrainRequest request =
      request_of({.method = "one_f_one_b", .layers = 2, .micro_batches = 2, .data = 1, .pipeline = 2},
                 precision_of(RealType::fp16));
  request.precision.loss_scale = 4096;
  request.precision.growth_interval = 2;
  request.measured_steps = 5;
  std::vector<double> scales;
  for (const StepRecord& step : train(request, nullptr).steps) {
    scales.push_back(step.loss_scale);
  }
  EXPECT_EQ(scales, (std::vector<double>{4096, 4096, 8192, 8192, 16384}));
}

TEST(LossScale, ARunWhoseMeasuredStepsWereAllSkippedHasFailed) {
  const ScheduleCase c{.method = "modular_pipeline", .layers = 4, .micro_batches = 2, .data = 2, .pipeline = 2};
  TrainRequest request = request_of(c, precision_of(RealType::fp16));
  request.precision.loss_scale = 0x1p50;
  request.warmup_steps = 1;
  try {
    train(request, nullptr);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("all 3 measured steps were skipped"));
    EXPECT_THAT(error.what(), HasSubstr("precision.loss_scale"));
  }
  // One measured step that is not skipped is enough.
  request.warmup_steps = 40;
  EXPECT_NO_THROW(train(request, nullptr));
}

// Gradients as small as those of a batch of some 10^5 times as many targets: below fp16's range, unless they are
// scaled.
TEST(LossScale, KeepsSmallGradients) {
  const ScheduleCase c{.method = "data_parallel", .layers = 2, .micro_batches = 4, .data = 1};
  Precision small = precision_of(RealType::fp16);
  small.loss_scale = 0x1p-17;
  const Ran wanted = run(request_of(c, precision_of(RealType::fp32)));
  EXPECT_LE(distance(run(request_of(c, precision_of(RealType::fp16))).gradients, wanted.gradients, shape_of(c)),
            4 * 0x1p-10);
  EXPECT_GT(distance(run(request_of(c, small)).gradients, wanted.gradients, shape_of(c)), 40 * 0x1p-10);
}

TEST(LossScale, NeedsAPlanThatUpdatesAfterTheNorm) {
  const ScheduleCase c{.method = "data_parallel", .layers = 2, .micro_batches = 2, .data = 1};
  TrainRequest request = request_of(c, precision_of(RealType::fp32));
  request.precision = precision_of(RealType::fp16);
  EXPECT_THROW(train(request, nullptr), Error);
}

}  // namespace
}  // namespace lamina
