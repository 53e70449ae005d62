// Plans confirmed by their schedules: equal to the forms where those are exact, what the schedule takes where not.
#include "impl/harness/confirm.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "impl/harness/step_plan.h"

namespace lamina {
namespace {

using analysis::LayerTimes;
using analysis::Order;
using analysis::PlanCost;
using analysis::Setting;
using analysis::StepPlan;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr ModelShape kModel{.layers = 12, .hidden = 64, .heads = 4, .sequence = 32, .vocabulary = 97};

Setting small_cluster(double network_bytes_per_s) {
  Setting setting;
  setting.model = kModel;
  setting.rates = {.flops_per_s = 1e9, .tensor_bytes_per_s = 1e9, .network_bytes_per_s = network_bytes_per_s};
  setting.critical_batch_tokens = 1e6;
  return setting;
}

// A plan with times of a layer that fit no cluster but can be followed by hand.
PlanCost by_hand(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  PlanCost cost;
  cost.plan = plan;
  cost.layer = times;
  cost.step = analysis::step_time(plan, analysis::stages_of(layers, plan.pipeline), times);
  cost.steps = 10;
  return cost;
}

ModelShape with_layers(std::int64_t layers) {
  ModelShape model = kModel;
  model.layers = layers;
  return model;
}

std::vector<StepPlan> exact_plans() {
  std::vector<StepPlan> plans;
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (const std::int64_t tensor : {1, 2}) {
      const StepPlan one_stage{
          .data = 3, .tensor = tensor, .micro_batch = 2, .micro_batches = 4, .zero_stage = zero_stage};
      for (const Order order : {Order::depth_first, Order::layered}) {
        plans.push_back(one_stage);
        plans.back().order = order;
      }
      plans.push_back(one_stage);
      plans.back().order = Order::hybrid;
      plans.back().groups = 2;
    }
  }
  for (const Order order : {Order::gpipe, Order::one_forward_one_backward, Order::interleaved, Order::modular}) {
    for (const std::int64_t micro_batches : {4, 8}) {
      plans.push_back({.order = order,
                       .pipeline = 4,
                       .micro_batches = micro_batches,
                       .chunks = order == Order::interleaved ? 3 : 1});
    }
  }
  return plans;
}

TEST(Confirmed, EqualsTheFormWhereItIsExact) {
  // From a link that hides nothing to one that hides nearly all; messages take less than a layer's forward pass.
  for (const double network_bytes_per_s : {2e6, 1e7, 1e8}) {
    for (const StepPlan& plan : exact_plans()) {
      const Setting setting = small_cluster(network_bytes_per_s);
      const PlanCost cost = analysis::cost_of(plan, setting);
      SCOPED_TRACE(analysis::to_json(cost).dump());
      ASSERT_LT(cost.layer.boundary_s, cost.layer.forward_s);
      const analysis::Confirmation confirmation = confirm(cost, kModel);
      ASSERT_TRUE(confirmation.step_s);
      EXPECT_NEAR(*confirmation.step_s / cost.step.total_s, 1, 1e-9);
      EXPECT_NEAR(*analysis::confirmed_training_s(confirmation, cost) / cost.training_s, 1, 1e-9);
      EXPECT_TRUE(confirmation.verified);
      EXPECT_THAT(confirmation.reason, IsEmpty());
    }
  }
}

// GPipe with ZeRO-3, two layers on each of two ranks, one micro-batch: forward 1, backward 3, gather and reduction 2.
// Rank 0 gathers its layers until 2 and 4, passes them until 3 and 5; rank 1, whose gathers are long over, until 7 and
// back until 13; rank 0 back until 19, and its last reduction ends at 21. The form's bound is 2·2·(2 + 4) + 4.
TEST(Confirmed, IsWhatTheScheduleTakesWhereTheFormIsABound) {
  const PlanCost cost = by_hand({.order = Order::gpipe, .data = 2, .pipeline = 2, .zero_stage = 3}, 4,
                                {.forward_s = 1, .backward_s = 3, .gather_s = 2, .reduce_s = 2, .all_reduce_s = 4});
  EXPECT_NEAR(cost.step.total_s, 28, 1e-9);
  const analysis::Confirmation confirmation = confirm(cost, with_layers(4));
  ASSERT_TRUE(confirmation.step_s);
  EXPECT_NEAR(*confirmation.step_s, 21, 1e-9);
  EXPECT_NEAR(*analysis::over_form(confirmation, cost), 0.75, 1e-9);
  EXPECT_NEAR(*analysis::confirmed_training_s(confirmation, cost), 210, 1e-9);
}

// Modular, two layers on each of two ranks, two micro-batches: the passes and transfers take 6.5 forward and 16.5 back,
// and the last all-reduce 8 more. Behind the one before it lies a round of the backward pass: 7 in the schedule, the
// way around the ring, so that 1 sticks out. The form counts 6, and 1 for the transfers that share its link.
TEST(Confirmed, DoesNotShareTheLink) {
  const PlanCost cost = by_hand({.order = Order::modular, .data = 2, .pipeline = 2, .micro_batches = 2}, 4,
                                {.forward_s = 1, .backward_s = 3, .boundary_s = 0.5, .all_reduce_s = 8});
  EXPECT_NEAR(cost.step.total_s, 23 + 8 + 3, 1e-9);
  const analysis::Confirmation confirmation = confirm(cost, with_layers(4));
  ASSERT_TRUE(confirmation.step_s);
  EXPECT_NEAR(*confirmation.step_s, 23 + 8 + 1, 1e-9);
}

TEST(Confirmed, SaysWhenAScheduleIsTooLarge) {
  const PlanCost cost = analysis::cost_of(exact_plans().back(), small_cluster(1e8));
  const std::int64_t ops = confirm(cost, kModel).ops;
  ASSERT_GT(ops, 500);
  const analysis::Confirmation unverified =
      confirm(cost, kModel, {.most_verified_ops_ranks = ops * cost.plan.pipeline - 1});
  EXPECT_FALSE(unverified.verified);
  EXPECT_EQ(unverified.step_s, confirm(cost, kModel).step_s);
  EXPECT_THAT(unverified.reason, HasSubstr(fmt::format("not verified: its schedule has {} ops on 4 pipeline", ops)));
  EXPECT_TRUE(confirm(cost, kModel, {.most_verified_ops_ranks = ops * cost.plan.pipeline}).verified);
  const analysis::Confirmation none = confirm(cost, kModel, {.most_ops = 500});
  EXPECT_FALSE(none.step_s);
  EXPECT_FALSE(none.verified);
  EXPECT_THAT(none.reason, HasSubstr("ops; at most 500 are simulated"));
  EXPECT_TRUE(analysis::to_json(none, cost)["training_days"].is_null());
}

TEST(Confirmed, KnowsTheOpsBeforehand) {
  std::vector<StepPlan> plans = exact_plans();
  for (const int zero_stage : {0, 3}) {
    for (const Order order : {Order::gpipe, Order::one_forward_one_backward, Order::modular}) {
      plans.push_back({.order = order, .data = 2, .pipeline = 4, .micro_batches = 16, .zero_stage = zero_stage});
    }
  }
  for (const StepPlan& plan : plans) {
    SCOPED_TRACE(analysis::to_json(plan).dump());
    const auto ops = static_cast<double>(confirm(analysis::cost_of(plan, small_cluster(1e8)), kModel).ops);
    EXPECT_NEAR(about_ops(plan, kModel.layers) / ops, 1, 0.2);
  }
}

TEST(Confirmed, APlanIsWhatItsRequestResolvesTo) {
  for (StepPlan plan : exact_plans()) {
    SCOPED_TRACE(analysis::to_json(plan).dump());
    StepPlan back = step_plan_of(schedule_of_plan(plan, kModel).plan);
    EXPECT_EQ(back.group_count(), plan.group_count());
    plan.tensor = 1;  // a schedule is one tensor rank's
    plan.groups = back.groups;
    EXPECT_EQ(back, plan);
  }
}

TEST(Confirmed, NoMethodNoTime) {
  StepPlan plan = exact_plans().front();
  plan.order = Order::modular;
  plan.pipeline = 24;  // more ranks than layers
  PlanCost cost;
  cost.plan = plan;
  const analysis::Confirmation confirmation = confirm(cost, kModel);
  EXPECT_FALSE(confirmation.step_s);
  EXPECT_THAT(confirmation.reason, HasSubstr("parallel.pipeline is 24"));
}

TEST(Confirmed, ThePlanWithTheSameTimesIsSimulatedOnce) {
  Confirmer confirmer;
  const PlanCost cost = analysis::cost_of(exact_plans().front(), small_cluster(1e6));
  const PlanCost faster = analysis::cost_of(exact_plans().front(), small_cluster(1e8));
  const std::optional<double> first = confirmer(cost, kModel).step_s;
  EXPECT_EQ(confirmer(cost, kModel).step_s, first);
  EXPECT_EQ(confirmer.judged(), 1U);
  EXPECT_LT(confirmer(faster, kModel).step_s, first);
  EXPECT_LT(confirmer(cost, with_layers(6)).step_s, first);
  EXPECT_EQ(confirmer.judged(), 3U);
}

}  // namespace
}  // namespace lamina
