// Each closed form against numbers worked by hand, its limits, and what it refuses.
#include "impl/analysis/forms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "impl/analysis/batch_law.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

// 24 d² + 4 s d = 24·16 + 4·3·4 = 432 FLOPs a token; 192 parameters a layer.
const ModelShape small{.layers = 8, .hidden = 4, .heads = 2, .sequence = 3, .vocabulary = 1};
const Rates slow{.flops_per_s = 1000, .tensor_bytes_per_s = 100, .network_bytes_per_s = 10};

// t_f = 1, t_b = 3 and transfers as given.
LayerTimes unit_times(double boundary = 0) { return {.forward_s = 1, .backward_s = 3, .boundary_s = boundary}; }
LayerTimes data_times(double gather, double reduce, double boundary = 0) {
  LayerTimes times = unit_times(boundary);
  times.gather_s = gather;
  times.reduce_s = reduce;
  times.all_reduce_s = 2 * reduce;
  return times;
}

double exposed(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  return exposed_data_time(plan, stages_of(layers, plan.pipeline), times);
}
double piped(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  return pipeline_time(plan, stages_of(layers, plan.pipeline), times);
}
double computed(const StepPlan& plan, std::int64_t layers) {
  return compute_time(plan, stages_of(layers, plan.pipeline), 4);
}

TEST(LayerForms, ParametersAndFlops) {
  EXPECT_DOUBLE_EQ(layer_parameters(small), 192);
  EXPECT_DOUBLE_EQ(total_parameters(small), 1536);
  EXPECT_DOUBLE_EQ(layer_forward_flops(small, 1, 1), 432 * 3);
  EXPECT_DOUBLE_EQ(layer_forward_flops(small, 2, 2), 432 * 3);
  EXPECT_DOUBLE_EQ(model_step_flops(small, 10), 3 * 8 * 10 * 1296.0);
  EXPECT_DOUBLE_EQ(hardware_step_flops(small, 10, Recompute::full), 4 * 8 * 10 * 1296.0);
}

TEST(LayerForms, RingTimes) {
  EXPECT_DOUBLE_EQ(padded_bytes(96, 2, 3), 192);
  EXPECT_DOUBLE_EQ(padded_bytes(96, 2, 5), 200);  // 96 elements in 5 parts of 20
  EXPECT_DOUBLE_EQ(ring_gather_time(200, 5, 10), 16);
  EXPECT_DOUBLE_EQ(ring_all_reduce_time(200, 5, 10), 32);
  EXPECT_EQ(ring_all_reduce_time(200, 1, 10), 0);
}

TEST(LayerForms, TimesOfOneLayer) {
  // b = 2, A = 2: forward 1.296 s; an all-reduce of 48 bytes over 2 ranks at 100 bytes/s takes 0.48 s.
  const StepPlan plan{.data = 5, .pipeline = 2, .tensor = 2, .micro_batch = 2};
  const LayerTimes times = layer_times(small, plan, slow, {});
  EXPECT_DOUBLE_EQ(times.forward_s, 1.296 + 2 * 0.48);
  EXPECT_DOUBLE_EQ(times.backward_s, 3 * 1.296 + 4 * 0.48);
  EXPECT_DOUBLE_EQ(times.boundary_s, 48.0 / 2 / 10);
  EXPECT_DOUBLE_EQ(times.gather_s, 16);
  EXPECT_DOUBLE_EQ(times.reduce_s, 16);
  EXPECT_DOUBLE_EQ(times.all_reduce_s, 32);
}

TEST(LayerForms, RecomputationDecidesTheBackward) {
  StepPlan plan{.tensor = 2, .micro_batch = 2, .recompute = Recompute::none};
  EXPECT_DOUBLE_EQ(layer_times(small, plan, slow, {}).backward_s, 2 * 1.296 + 2 * 0.48);
  plan.recompute = Recompute::selective;  // attention is 4 s d = 48 of 432 FLOPs
  EXPECT_DOUBLE_EQ(layer_times(small, plan, slow, {}).backward_s, (2 + 1.0 / 9) * 1.296 + 2 * 0.48);
}

TEST(LayerForms, WidthsOfParametersAndGradientsDiffer) {
  const StepPlan plan{.data = 3};
  const LayerTimes times = layer_times(small, plan, slow, {.activation = 2, .parameter = 1, .gradient = 4});
  EXPECT_DOUBLE_EQ(times.gather_s, 2.0 / 3 * 192 / 10);
  EXPECT_DOUBLE_EQ(times.reduce_s, 2.0 / 3 * 768 / 10);
}

TEST(ComputeForms, ByHand) {
  EXPECT_DOUBLE_EQ(computed({.order = Order::layered, .micro_batches = 5}, 8), 160);
  EXPECT_DOUBLE_EQ(computed({.order = Order::depth_first, .micro_batches = 5}, 8), 160);
  EXPECT_DOUBLE_EQ(computed({.order = Order::hybrid, .micro_batches = 6, .groups = 3}, 8), 192);
  EXPECT_DOUBLE_EQ(computed({.order = Order::gpipe, .pipeline = 4, .micro_batches = 6}, 8), 72);
  EXPECT_DOUBLE_EQ(computed({.order = Order::one_forward_one_backward, .pipeline = 4, .micro_batches = 6}, 8), 72);
  EXPECT_DOUBLE_EQ(computed({.order = Order::interleaved, .pipeline = 4, .micro_batches = 8, .chunks = 2}, 16), 152);
  EXPECT_DOUBLE_EQ(computed({.order = Order::interleaved, .pipeline = 4, .micro_batches = 2, .chunks = 2}, 16), 72);
  EXPECT_DOUBLE_EQ(computed({.order = Order::modular, .pipeline = 4, .micro_batches = 6}, 8), 60);
  EXPECT_DOUBLE_EQ(computed({.order = Order::modular, .pipeline = 4, .micro_batches = 3}, 8), 40);
  EXPECT_DOUBLE_EQ(computed({.order = Order::modular, .pipeline = 4, .micro_batches = 8, .groups = 2}, 8), 88);
}

TEST(ComputeForms, LayersThatDoNotDivide) {
  EXPECT_DOUBLE_EQ(computed({.order = Order::gpipe, .pipeline = 4, .micro_batches = 6}, 10), 100);
  EXPECT_DOUBLE_EQ(computed({.order = Order::modular, .pipeline = 4, .micro_batches = 6}, 10), 76);
  const Stages stages = stages_of(10, 4);
  EXPECT_EQ(stages.layers_each, 3);
  EXPECT_EQ(stages.last_round, 2);
  EXPECT_EQ(stages_of(8, 4).last_round, 4);
}

TEST(BoundaryForms, ByHand) {
  const LayerTimes times = unit_times(0.5);
  EXPECT_DOUBLE_EQ(piped({.order = Order::modular, .pipeline = 4, .micro_batches = 6}, 8, times), 16.5 + 46.5);
  EXPECT_DOUBLE_EQ(piped({.order = Order::gpipe, .pipeline = 4, .micro_batches = 6}, 8, times), 19.5 + 55.5);
  EXPECT_DOUBLE_EQ(piped({.order = Order::one_forward_one_backward, .pipeline = 4, .micro_batches = 6}, 8, times), 78);
  EXPECT_DOUBLE_EQ(piped({.order = Order::interleaved, .pipeline = 4, .micro_batches = 8, .chunks = 2}, 16, times),
                   159);
  // A transfer longer than the compute sets the pace: modular (K = 2) forward max(6·5, 4·6) + 5·5 + 1 + 3·6.
  const LayerTimes long_transfer = unit_times(5);
  EXPECT_DOUBLE_EQ(piped({.order = Order::modular, .pipeline = 4, .micro_batches = 6}, 8, long_transfer),
                   (30 + 25 + 1 + 18) + (32 + 25 + 3 + 24));
}

TEST(BoundaryForms, Crossings) {
  EXPECT_EQ(boundaries_crossed({.order = Order::gpipe, .pipeline = 4}, 8), 3);
  EXPECT_EQ(boundaries_crossed({.order = Order::interleaved, .pipeline = 4, .chunks = 2}, 8), 7);
  EXPECT_EQ(boundaries_crossed({.order = Order::modular, .pipeline = 4}, 10), 9);
  EXPECT_EQ(boundaries_crossed({.order = Order::layered}, 10), 0);
}

TEST(ExposureForms, WithoutPartition) {
  // a = 7, K = 4
  EXPECT_DOUBLE_EQ(exposed({.order = Order::layered, .data = 2, .micro_batches = 2}, 4, data_times(0, 3.5)), 10);
  EXPECT_DOUBLE_EQ(exposed({.order = Order::depth_first, .data = 2, .micro_batches = 2}, 4, data_times(0, 3.5)), 19);
  EXPECT_DOUBLE_EQ(
      exposed({.order = Order::gpipe, .data = 2, .pipeline = 2, .micro_batches = 6}, 8, data_times(0, 3.5)), 19);
  const StepPlan interleaved{.order = Order::interleaved, .data = 2, .pipeline = 4, .micro_batches = 8, .chunks = 2};
  EXPECT_DOUBLE_EQ(exposed(interleaved, 16, data_times(0, 3.5)), 11);
  EXPECT_DOUBLE_EQ(exposed(interleaved, 16, data_times(0, 6.5)), 25);
}

TEST(ExposureForms, ZeroOneAndTwo) {
  const LayerTimes times = data_times(5, 8);
  EXPECT_DOUBLE_EQ(exposed({.order = Order::layered, .data = 2, .micro_batches = 2, .zero_stage = 1}, 4, times), 28);
  EXPECT_DOUBLE_EQ(
      exposed({.order = Order::hybrid, .data = 2, .micro_batches = 4, .groups = 2, .zero_stage = 2}, 4, times), 32);
  EXPECT_DOUBLE_EQ(exposed({.order = Order::depth_first, .data = 2, .micro_batches = 2, .zero_stage = 2}, 4, times),
                   56);
}

TEST(ExposureForms, ZeroThree) {
  const LayerTimes times = data_times(5, 8);
  StepPlan plan{.order = Order::layered, .data = 2, .micro_batches = 2, .zero_stage = 3};
  EXPECT_DOUBLE_EQ(exposed(plan, 4, times), 38);
  plan.order = Order::depth_first;
  EXPECT_DOUBLE_EQ(exposed(plan, 4, times), 90);
  plan.keep_full_gradient = true;
  EXPECT_DOUBLE_EQ(exposed(plan, 4, times), 62);
}

TEST(ExposureForms, ZeroThreeInOrdinaryPipelinesIsABound) {
  const LayerTimes times = data_times(2, 2);
  StepPlan plan{.order = Order::gpipe, .data = 2, .pipeline = 4, .micro_batches = 6, .zero_stage = 3};
  EXPECT_DOUBLE_EQ(step_time(plan, stages_of(8, 4), times).total_s, 112);
  plan.order = Order::one_forward_one_backward;
  EXPECT_DOUBLE_EQ(step_time(plan, stages_of(8, 4), times).total_s, 122);
}

TEST(ExposureForms, ModularSharesItsLink) {
  // L = 2, K = 4, m = 3: T_f = 3, T_b = 9, and 3 transfers of 0.5 s share the link.
  StepPlan plan{.order = Order::modular, .data = 2, .pipeline = 2, .micro_batches = 3};
  EXPECT_DOUBLE_EQ(exposed(plan, 8, data_times(0, 4.5, 0.5)), 13.5);
  plan.zero_stage = 3;
  EXPECT_DOUBLE_EQ(exposed(plan, 8, data_times(3, 7, 0.5)), 19.5);
}

TEST(ExposureForms, OneLayerARankKeepsItGathered) {
  const StepPlan plan{.order = Order::modular, .data = 2, .pipeline = 4, .micro_batches = 4, .zero_stage = 3};
  EXPECT_DOUBLE_EQ(exposed(plan, 4, data_times(5, 8)), 13);
}

TEST(StepForms, PartsAddUp) {
  const StepPlan plan{.order = Order::modular, .data = 2, .pipeline = 2, .micro_batches = 3};
  const StepTime step = step_time(plan, stages_of(8, 2), data_times(0, 4.5, 0.5));
  EXPECT_DOUBLE_EQ(step.work_s, 48);
  EXPECT_DOUBLE_EQ(step.bubble_s, 4);
  EXPECT_DOUBLE_EQ(step.exposed_data_s, 13.5);
  EXPECT_DOUBLE_EQ(step.total_s, step.work_s + step.bubble_s + step.boundary_s + step.exposed_data_s);
}

TEST(StepForms, NotCovered) {
  const LayerTimes times = unit_times(0.5);
  const auto covered = [&](const StepPlan& plan) { return !not_covered(plan, stages_of(16, plan.pipeline), times); };
  EXPECT_TRUE(covered({.order = Order::interleaved, .data = 2, .pipeline = 4, .micro_batches = 8, .chunks = 2}));
  EXPECT_FALSE(covered({.order = Order::interleaved, .data = 2, .pipeline = 4, .micro_batches = 9, .chunks = 2}));
  EXPECT_FALSE(covered(
      {.order = Order::interleaved, .data = 2, .pipeline = 4, .micro_batches = 8, .chunks = 2, .zero_stage = 3}));
  EXPECT_FALSE(covered({.order = Order::gpipe, .data = 2, .pipeline = 4, .micro_batches = 8, .zero_stage = 2}));
  EXPECT_FALSE(covered({.order = Order::hybrid, .micro_batches = 8, .groups = 3}));
  EXPECT_FALSE(covered({.order = Order::layered, .pipeline = 2, .micro_batches = 8}));
  const StepPlan chunks_of_one{.order = Order::interleaved, .pipeline = 4, .micro_batches = 8, .chunks = 4};
  EXPECT_FALSE(not_covered(chunks_of_one, stages_of(16, 4), unit_times(1)));
  EXPECT_TRUE(not_covered(chunks_of_one, stages_of(16, 4), unit_times(1.5)));
}

TEST(TrafficForms, Table) {
  const auto gathers = [](Order order, int stage, std::int64_t m, std::int64_t resident) {
    return data_traffic({.order = order, .data = 2, .micro_batches = m, .zero_stage = stage}, 4, resident, 0).gathers;
  };
  const auto reductions = [](Order order, int stage, std::int64_t m, bool full = false) {
    return data_traffic(
               {.order = order, .data = 2, .micro_batches = m, .zero_stage = stage, .keep_full_gradient = full}, 4, 0,
               0)
        .reductions;
  };
  const std::int64_t counts[] = {1, 2, 4, 8};
  const double depth_first_gathers[] = {8, 16, 32, 64};
  const double depth_first_reductions[] = {4, 8, 16, 32};
  const double with_two_resident[] = {6, 10, 18, 34};
  for (int i = 0; i < 4; ++i) {
    const std::int64_t m = counts[i];
    EXPECT_EQ(gathers(Order::depth_first, 3, m, 0), depth_first_gathers[i]);
    EXPECT_EQ(gathers(Order::depth_first, 3, m, 2), with_two_resident[i]);
    EXPECT_EQ(reductions(Order::depth_first, 3, m), depth_first_reductions[i]);
    EXPECT_EQ(reductions(Order::depth_first, 3, m, true), 4);
    EXPECT_EQ(gathers(Order::layered, 3, m, 0), 8);
    EXPECT_EQ(gathers(Order::layered, 3, m, 2), 6);
    EXPECT_EQ(reductions(Order::layered, 3, m), 4);
    EXPECT_EQ(gathers(Order::depth_first, 0, m, 0), 0);
    EXPECT_EQ(reductions(Order::depth_first, 0, m), 8);
    EXPECT_EQ(gathers(Order::depth_first, 1, m, 0), 4);
    EXPECT_EQ(reductions(Order::depth_first, 1, m), 4);
    EXPECT_EQ(gathers(Order::depth_first, 2, m, 0), 4);
    EXPECT_EQ(reductions(Order::depth_first, 2, m), depth_first_reductions[i]);
  }
}

TEST(TrafficForms, Pipelines) {
  const auto gathers = [](Order order, std::int64_t m, std::int64_t rank) {
    return data_traffic({.order = order, .data = 2, .pipeline = 4, .micro_batches = m, .zero_stage = 3}, 4, 2, rank)
        .gathers;
  };
  EXPECT_EQ(gathers(Order::gpipe, 4, 0), 30);
  EXPECT_EQ(gathers(Order::modular, 4, 0), 6);
  EXPECT_EQ(gathers(Order::one_forward_one_backward, 8, 0), 46);
  EXPECT_EQ(gathers(Order::one_forward_one_backward, 8, 3), 34);
  EXPECT_EQ(gathers(Order::one_forward_one_backward, 2, 0), 14);
}

TEST(TrafficForms, Bytes) {
  StepPlan plan{.order = Order::layered, .data = 3, .micro_batches = 4, .zero_stage = 3};
  const DataTraffic traffic = data_traffic(plan, 8, 0, 0);  // 16 gathers, 8 reductions of 192 elements
  EXPECT_DOUBLE_EQ(data_bytes_sent(traffic, small, plan, {}), 6144);
  plan.data = 5;  // padded to 195
  EXPECT_DOUBLE_EQ(data_bytes_sent(traffic, small, plan, {}), 7488);
  EXPECT_DOUBLE_EQ(data_bytes_sent(traffic, small, plan, {.parameter = 2, .gradient = 4}), 64 * 0.8 * 195);
  plan.data = 1;
  EXPECT_EQ(data_bytes_sent(traffic, small, plan, {}), 0);
}

TEST(ThresholdForms, ByHand) {
  const Rates a100{.flops_per_s = 312e12, .tensor_bytes_per_s = 300e9, .network_bytes_per_s = 25e9};
  const auto tokens = [&](int stage, Recompute recompute) {
    return tokens_to_hide_network(stage, recompute, 2, a100, {});
  };
  EXPECT_DOUBLE_EQ(tokens(0, Recompute::full), 8320 / 2);
  EXPECT_DOUBLE_EQ(tokens(0, Recompute::none), 12480 / 2);
  EXPECT_DOUBLE_EQ(tokens(3, Recompute::full), 12480 / 2);
  EXPECT_DOUBLE_EQ(tokens(3, Recompute::none), 12480 / 2);
  // Reductions of 4 bytes: (2 + 4) F/(6 β) with recomputation ties with the gathers, (2 + 4) F/(4 β) without exceeds
  // them.
  EXPECT_DOUBLE_EQ(tokens_to_hide_network(3, Recompute::none, 2, a100, {.parameter = 2, .gradient = 4}), 18720 / 2);
  EXPECT_DOUBLE_EQ(bandwidth_to_hide_network(0, Recompute::full, 2, 312e12, 4160, {}), 25e9);
}

TEST(ThresholdForms, AtTheThresholdOnlyTheEndsStickOut) {
  // Attention is left out of the threshold, so a hidden size far above the sequence is needed to meet it closely.
  const ModelShape wide{.layers = 6, .hidden = 1 << 16, .heads = 2, .sequence = 16, .vocabulary = 1};
  for (const int stage : {0, 1, 3}) {
    StepPlan plan{.order = Order::layered, .data = 4, .micro_batches = 100, .zero_stage = stage};
    Rates rates{.flops_per_s = 1e12, .tensor_bytes_per_s = 1e9, .network_bytes_per_s = 0};
    rates.network_bytes_per_s = bandwidth_to_hide_network(stage, Recompute::full, 4, 1e12, 100 * 16, {});
    const LayerTimes times = layer_times(wide, plan, rates, {});
    const double ends = stage == 0 ? times.all_reduce_s : times.gather_s + times.reduce_s;
    EXPECT_NEAR(exposed(plan, 6, times) / ends, 1, 1e-3) << "ZeRO-" << stage;
    rates.network_bytes_per_s /= 1.2;
    EXPECT_GT(exposed(plan, 6, layer_times(wide, plan, rates, {})), 1.25 * ends) << "ZeRO-" << stage;
  }
}

TEST(MemoryForms, StateAndBuffers) {
  // 96 parameters a layer and rank, 384 here.
  StepPlan plan{.order = Order::modular, .data = 4, .pipeline = 2, .tensor = 2, .micro_batch = 2, .micro_batches = 6};
  const auto memory = [&](int stage) {
    plan.zero_stage = stage;
    return memory_of(plan, small, {});
  };
  EXPECT_DOUBLE_EQ(memory(0).parameters, 768);
  EXPECT_DOUBLE_EQ(memory(0).gradients, 768);
  EXPECT_DOUBLE_EQ(memory(0).optimizer, 4608);
  EXPECT_EQ(memory(0).buffers, 0);
  EXPECT_DOUBLE_EQ(memory(1).optimizer, 1152);
  EXPECT_DOUBLE_EQ(memory(1).gradients, 768);
  EXPECT_DOUBLE_EQ(memory(2).gradients, 192);
  EXPECT_DOUBLE_EQ(memory(2).buffers, 384);
  EXPECT_DOUBLE_EQ(memory(3).parameters, 192);
  EXPECT_DOUBLE_EQ(memory(3).buffers, 768);
  plan.keep_full_gradient = true;
  EXPECT_DOUBLE_EQ(memory(3).buffers, 768 + 768);
  EXPECT_DOUBLE_EQ(memory_of(plan, small, {.gradient = 4}).gradients, 384);
}

TEST(MemoryForms, Checkpoints) {
  // 24 bytes each with sequence parallelism, 48 without.
  const auto bytes = [](StepPlan plan, std::int64_t rank = 0) {
    plan.tensor = 2;
    plan.micro_batch = 2;
    return memory_of(plan, small, {}, rank).checkpoints;
  };
  EXPECT_DOUBLE_EQ(bytes({.order = Order::depth_first, .micro_batches = 6}), 8 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::layered, .micro_batches = 6}), 48 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::hybrid, .micro_batches = 6, .groups = 3}), 16 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::gpipe, .pipeline = 2, .micro_batches = 6}), 24 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::modular, .pipeline = 2, .micro_batches = 6}), 24 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::one_forward_one_backward, .pipeline = 2, .micro_batches = 6}), 8 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::one_forward_one_backward, .pipeline = 2, .micro_batches = 6}, 1), 4 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::one_forward_one_backward, .pipeline = 2, .micro_batches = 1}), 4 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::interleaved, .pipeline = 2, .micro_batches = 6, .chunks = 2}), 10 * 24);
  EXPECT_DOUBLE_EQ(bytes({.order = Order::layered, .micro_batches = 1, .sequence_parallel = false}), 8 * 48);
}

TEST(MemoryForms, WorkingSet) {
  StepPlan plan{.order = Order::layered, .tensor = 2, .micro_batch = 2, .micro_batches = 3};
  EXPECT_DOUBLE_EQ(memory_of(plan, small, {}).working_set, 498);
  plan.recompute = Recompute::none;  // every layer and micro-batch keeps all of it
  EXPECT_DOUBLE_EQ(memory_of(plan, small, {}).checkpoints, 24 * 498);
  plan.recompute = Recompute::selective;  // without the scores: 6·34·4/2
  EXPECT_DOUBLE_EQ(memory_of(plan, small, {}).checkpoints, 24 * 408);
  plan.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(memory_of(plan, small, {}).working_set, 618);
}

TEST(FormProperties, BandwidthAndRanks) {
  StepPlan plan{.order = Order::layered, .data = 8, .micro_batches = 2, .zero_stage = 3};
  Rates rates = slow;
  rates.network_bytes_per_s = 1e-3;
  const double at = exposed(plan, 8, layer_times(small, plan, rates, {}));
  rates.network_bytes_per_s = 2e-3;
  // On a slow link all is communication: twice the bandwidth halves it, up to the compute that hides some.
  EXPECT_NEAR(exposed(plan, 8, layer_times(small, plan, rates, {})) / at, 0.5, 1e-3);
  rates.network_bytes_per_s = 1e300;
  EXPECT_NEAR(exposed(plan, 8, layer_times(small, plan, rates, {})), 0, 1e-9);
  plan.data = 1;
  rates.network_bytes_per_s = 1e-3;
  EXPECT_EQ(exposed(plan, 8, layer_times(small, plan, rates, {})), 0);
}

TEST(FormProperties, LayeredGainsAtMostItsBound) {
  // ZeRO-0: at most 1 + t_b/T = 1.75 with recomputation, whatever the network.
  for (double reduce = 0.01; reduce < 1e4; reduce *= 1.3) {
    for (const std::int64_t m : {1, 2, 4, 16, 256}) {
      StepPlan plan{.order = Order::depth_first, .data = 2, .micro_batches = m};
      const double depth_first = step_time(plan, stages_of(64, 1), data_times(0, reduce)).total_s;
      plan.order = Order::layered;
      const double layered = step_time(plan, stages_of(64, 1), data_times(0, reduce)).total_s;
      EXPECT_GE(depth_first / layered, 1 - 1e-12);
      EXPECT_LE(depth_first / layered, 1.75);
    }
  }
}

TEST(FormProperties, ModularEqualsInterleavedWithOneLayerAChunk) {
  for (const std::int64_t ranks : {2, 4, 8}) {
    for (const std::int64_t k : {2, 5, 12}) {
      const StepPlan modular{.order = Order::modular, .pipeline = ranks, .micro_batches = 3 * ranks};
      StepPlan interleaved = modular;
      interleaved.order = Order::interleaved;
      interleaved.chunks = k;
      EXPECT_DOUBLE_EQ(computed(modular, k * ranks), computed(interleaved, k * ranks));
    }
  }
}

TEST(FormProperties, LargestSizesStayFinite) {
  const ModelShape model = family_model(384);  // 10¹⁴ parameters
  EXPECT_GT(total_parameters(model), 1e14);
  const Rates rates{.flops_per_s = 312e12, .tensor_bytes_per_s = 300e9, .network_bytes_per_s = 25e9};
  for (const Order order : {Order::depth_first, Order::layered, Order::gpipe, Order::one_forward_one_backward,
                            Order::interleaved, Order::modular}) {
    const bool one_stage = !is_pipeline(order);
    const StepPlan plan{.order = order,
                        .data = one_stage ? 62'500 : 1'302,
                        .pipeline = one_stage ? 1 : 48,
                        .tensor = 16,
                        .micro_batches = 1'000'000 / 48 * 48,
                        .chunks = 8,
                        .zero_stage = order == Order::interleaved ? 0 : 3};
    EXPECT_NEAR(static_cast<double>(plan.devices()), 1e6, 1e3);
    const LayerTimes times = layer_times(model, plan, rates, {});
    const StepTime step = step_time(plan, stages_of(model.layers, plan.pipeline), times);
    EXPECT_TRUE(std::isfinite(step.total_s) && step.total_s > 0) << name_of(order);
    const double memory = memory_of(plan, model, {}).total();
    EXPECT_TRUE(std::isfinite(memory) && memory > 0) << name_of(order);
    const double sent = data_bytes_sent(
        data_traffic(plan, std::llround(stages_of(model.layers, plan.pipeline).layers_each), 0, 0), model, plan, {});
    EXPECT_TRUE(std::isfinite(sent) && sent > 0) << name_of(order);
    EXPECT_GT(plan.batch(), 0);
  }
}

void expect_one_line(const std::function<void()>& action, const std::string& part) {
  try {
    action();
    FAIL() << "accepted; expected a refusal with '" << part << "'";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(FormRefusals, OneClearLine) {
  ModelShape model = small;
  EXPECT_NO_THROW(validate_for_forms(model));
  model.layers = 0;
  expect_one_line([&] { validate_for_forms(model); }, "model.layers is 0");
  model.layers = INT64_MAX;
  expect_one_line([&] { validate_for_forms(model); }, "model.layers");
  model = small;
  model.heads = 3;
  expect_one_line([&] { validate_for_forms(model); }, "does not divide model.hidden");
  model = small;
  model.hidden = 1'000'000'000;
  model.heads = 1;
  expect_one_line([&] { validate_for_forms(model); }, "at most 1e18");
  Rates rates = slow;
  rates.network_bytes_per_s = 0;
  expect_one_line([&] { validate(rates); }, "bandwidth between nodes is 0");
  rates = slow;
  rates.flops_per_s = std::nan("");
  expect_one_line([&] { validate(rates); }, "peak rate");
}

}  // namespace
}  // namespace lamina::analysis
