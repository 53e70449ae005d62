// The closed forms against a timeline that runs every operation: thousands of random cases, equal where the forms are
// exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "impl/analysis/timeline.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

constexpr int cases = 1500;
constexpr double close = 1e-9;

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  std::int64_t whole(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  LayerTimes layer() {
    LayerTimes times;
    times.forward_s = real(0.5, 2);
    times.backward_s = times.forward_s * real(1, 3.5);
    times.gather_s = real(0, 12);
    times.reduce_s = real(0, 12);
    times.all_reduce_s = real(0, 20);
    return times;
  }

 private:
  std::mt19937 engine_;
};

double run_one_stage(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  auto ops = one_stage_timeline(plan, layers, times);
  return run_timeline(ops);
}

double run_pipeline(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  auto ops = pipeline_timeline(plan, layers, times);
  return run_timeline(ops);
}

void check_one_stage(Order order, int zero_stage, bool keep_full_gradient = false) {
  Dice dice(17);
  for (int i = 0; i < cases; ++i) {
    const std::int64_t groups = dice.whole(1, 5);
    const StepPlan plan{.order = order,
                        .data = 4,
                        .micro_batches = groups * dice.whole(1, 4),
                        .groups = groups,
                        .zero_stage = zero_stage,
                        .keep_full_gradient = keep_full_gradient};
    const std::int64_t layers = dice.whole(3, 9);
    const LayerTimes times = dice.layer();
    const double form = step_time(plan, stages_of(layers, 1), times).total_s;
    ASSERT_NEAR(run_one_stage(plan, layers, times) / form, 1, close)
        << name_of(order) << " N " << layers << " m " << plan.micro_batches << " n " << groups << " case " << i;
  }
}

TEST(OneStage, DepthFirstWithoutPartition) { check_one_stage(Order::depth_first, 0); }
TEST(OneStage, LayeredWithoutPartition) { check_one_stage(Order::layered, 0); }
TEST(OneStage, HybridWithoutPartition) { check_one_stage(Order::hybrid, 0); }
TEST(OneStage, DepthFirstZeroOne) { check_one_stage(Order::depth_first, 1); }
TEST(OneStage, LayeredZeroOne) { check_one_stage(Order::layered, 1); }
TEST(OneStage, HybridZeroOne) { check_one_stage(Order::hybrid, 1); }
TEST(OneStage, DepthFirstZeroTwo) { check_one_stage(Order::depth_first, 2); }
TEST(OneStage, LayeredZeroTwo) { check_one_stage(Order::layered, 2); }
TEST(OneStage, HybridZeroTwo) { check_one_stage(Order::hybrid, 2); }
TEST(OneStage, DepthFirstPartitioned) { check_one_stage(Order::depth_first, 3); }
TEST(OneStage, LayeredPartitioned) { check_one_stage(Order::layered, 3); }
TEST(OneStage, DepthFirstPartitionedKeepingTheFullGradient) { check_one_stage(Order::depth_first, 3, true); }
TEST(OneStage, HybridPartitionedKeepingTheFullGradient) { check_one_stage(Order::hybrid, 3, true); }
TEST(OneStage, HybridPartitioned) { check_one_stage(Order::hybrid, 3); }

TEST(Pipeline, GPipeWithAnyTransfer) {
  Dice dice(18);
  for (int i = 0; i < cases; ++i) {
    const StepPlan plan{.order = Order::gpipe, .pipeline = dice.whole(2, 5), .micro_batches = dice.whole(1, 12)};
    const std::int64_t layers = plan.pipeline * dice.whole(1, 4);
    LayerTimes times = dice.layer();
    times.boundary_s = dice.real(0, 6);
    const double form = pipeline_time(plan, stages_of(layers, plan.pipeline), times);
    ASSERT_NEAR(run_pipeline(plan, layers, times) / form, 1, close) << "case " << i;
  }
}

TEST(Pipeline, OneForwardOneBackwardWithTransfersUpToALayer) {
  Dice dice(19);
  for (int i = 0; i < cases; ++i) {
    const StepPlan plan{
        .order = Order::one_forward_one_backward, .pipeline = dice.whole(2, 5), .micro_batches = dice.whole(1, 12)};
    const std::int64_t layers = plan.pipeline * dice.whole(1, 4);
    LayerTimes times = dice.layer();
    times.boundary_s = dice.real(0, times.forward_s);
    const double form = pipeline_time(plan, stages_of(layers, plan.pipeline), times);
    ASSERT_NEAR(run_pipeline(plan, layers, times) / form, 1, close) << "case " << i;
  }
}

TEST(Pipeline, InterleavedWithTransfersUpToAChunk) {
  Dice dice(20);
  for (int i = 0; i < cases; ++i) {
    const std::int64_t ranks = dice.whole(2, 5);
    const std::int64_t chunk = dice.whole(1, 3);
    const StepPlan plan{.order = Order::interleaved,
                        .pipeline = ranks,
                        .micro_batches = ranks * dice.whole(1, 3),
                        .chunks = dice.whole(2, 4)};
    const std::int64_t layers = ranks * plan.chunks * chunk;
    LayerTimes times = dice.layer();
    times.boundary_s = dice.real(0, static_cast<double>(chunk) * times.forward_s);
    const double form = pipeline_time(plan, stages_of(layers, ranks), times);
    ASSERT_NEAR(run_pipeline(plan, layers, times) / form, 1, close) << "case " << i;
  }
}

TEST(Pipeline, ModularWithAnyTransferWhenLayersDivide) {
  Dice dice(21);
  for (int i = 0; i < cases; ++i) {
    const std::int64_t groups = dice.whole(1, 3);
    const StepPlan plan{.order = Order::modular,
                        .pipeline = dice.whole(2, 5),
                        .micro_batches = groups * dice.whole(1, 8),
                        .groups = groups};
    const std::int64_t layers = plan.pipeline * dice.whole(1, 4);
    LayerTimes times = dice.layer();
    times.boundary_s = dice.real(0, 6);
    const double form = pipeline_time(plan, stages_of(layers, plan.pipeline), times);
    ASSERT_NEAR(run_pipeline(plan, layers, times) / form, 1, close) << "case " << i;
  }
}

TEST(Pipeline, ModularWithLayersThatDoNotDivide) {
  Dice dice(22);
  for (int i = 0; i < cases; ++i) {
    const StepPlan plan{.order = Order::modular, .pipeline = dice.whole(2, 5), .micro_batches = dice.whole(1, 12)};
    const std::int64_t layers = dice.whole(plan.pipeline, 4 * plan.pipeline);
    LayerTimes times = dice.layer();
    times.boundary_s = dice.real(0, times.forward_s);  // the condition under which the form is exact
    const double form = pipeline_time(plan, stages_of(layers, plan.pipeline), times);
    ASSERT_NEAR(run_pipeline(plan, layers, times) / form, 1, close) << "case " << i;
    times.boundary_s = dice.real(0, 6);  // beyond it the form is an upper bound
    ASSERT_LE(run_pipeline(plan, layers, times),
              pipeline_time(plan, stages_of(layers, plan.pipeline), times) * (1 + close))
        << "case " << i;
  }
}

TEST(Timeline, OrderOnAStreamIsKept) {
  std::vector<TimelineOp> ops(3);
  ops[0].duration_s = 2;
  ops[1].duration_s = 1;
  ops[2] = {.lane = Lane::data, .duration_s = 5, .waits = {0}};
  EXPECT_EQ(run_timeline(ops), 7);
  EXPECT_EQ(ops[1].start_s, 2);
  EXPECT_EQ(ops[2].start_s, 2);
}

TEST(Timeline, WaitingInACircleIsAnError) {
  std::vector<TimelineOp> ops(2);
  ops[0] = {.lane = Lane::compute, .waits = {1}};
  ops[1] = {.lane = Lane::data, .waits = {0}};
  EXPECT_THROW(run_timeline(ops), Error);
}

}  // namespace
}  // namespace lamina::analysis
