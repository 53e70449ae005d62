// The closed form beside a measured step: what it makes of known op times and a known link.
#include "impl/harness/closed_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "impl/analysis/forms.h"
#include "impl/harness/expectations.h"
#include "impl/harness/runner.h"
#include "impl/schedule/verify.h"
#include "impl/simulator/simulate.h"
#include "schedule_cases.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

using testing::HasSubstr;

// A layer outweighs embedding and head, as in the forms.
constexpr ModelShape kModel{.layers = 0, .hidden = 128, .heads = 1, .sequence = 2, .vocabulary = 3};
constexpr double kForward = 0.010, kBackward = 0.022;

// A step as an engine would record it: ops on a clock, layers alone take time to compute.
struct Recorded {
  Schedule schedule;
  Measurement measurement;
  Trace trace;
  double step_s = 0;
};

Recorded record(const ScheduleCase& c, const EmulatedLink& link) {
  Recorded recorded;
  recorded.schedule = build_schedule(method_named(c.method), plan_of(c, kModel));
  verify(recorded.schedule);
  const Plan& plan = recorded.schedule.plan;
  const auto data = static_cast<double>(plan.parallel.data);
  const double bytes_per_s = link.bandwidth_bits_per_s / 8;
  const Simulation simulation = simulate(recorded.schedule, [&](std::int32_t, const Op& op) -> double {
    const double bytes = 4 * static_cast<double>(op.elements);
    const double ring = (data - 1) / data * bytes / bytes_per_s + (data - 1) * link.latency_s;
    switch (op.kind) {
      case OpKind::forward:
        return op.unit.kind == UnitKind::layer ? kForward : 0;
      case OpKind::backward:
        return op.unit.kind == UnitKind::layer ? kBackward : 0;
      case OpKind::gather:
      case OpKind::reduce:
        return ring;
      case OpKind::all_reduce:
        return 2 * ring;
      case OpKind::send:
      case OpKind::receive:
        return bytes / bytes_per_s + link.latency_s;
      default:
        return 0;
    }
  });
  recorded.step_s = simulation.step_time_s;
  for (const TraceEvent& event : simulation.trace) {
    for (std::int64_t rank = 0; rank < plan.parallel.data; ++rank) {
      TraceEvent copy = event;
      copy.rank =
          static_cast<std::int32_t>(rank_of({.data = rank, .pipeline = event.rank, .tensor = 0}, plan.parallel));
      recorded.trace.push_back(copy);
      copy.step = -1;  // of another length: warm-up does not count
      copy.end_s += 7;
      recorded.trace.push_back(copy);
    }
  }
  recorded.measurement.rank_busy_s = simulation.compute_busy_s;
  recorded.measurement.step_time_s = {simulation.step_time_s};
  return recorded;
}

double form_over_step(const ScheduleCase& c, const EmulatedLink& link) {
  const Recorded recorded = record(c, link);
  const ClosedForm form = closed_form_of(recorded.schedule, Precision{}, link, recorded.measurement, recorded.trace, 0);
  EXPECT_EQ(form.reason, "") << to_string(c);
  EXPECT_NEAR(form.forward_s, kForward, 1e-12);
  EXPECT_NEAR(form.backward_s, kBackward, 1e-12);
  return form.step_time_s.value_or(0) / recorded.step_s;
}

// One layer's all-reduce takes 0.016 s at 2e8 bit/s, its gather 0.008 s.
TEST(ClosedForm, IsTheStepOfKnownOpsAndLink) {
  for (const double bandwidth : {2e7, 1e8, 2e8, 1e9}) {
    const EmulatedLink link{bandwidth, 1e-5};
    for (const char* method : {"data_parallel", "layered_accumulation"}) {
      for (const int zero_stage : {0, 1, 2, 3}) {
        const ScheduleCase c{.method = method, .layers = 6, .micro_batches = 4, .data = 2, .zero_stage = zero_stage};
        EXPECT_NEAR(form_over_step(c, link), 1, 0.01) << to_string(c) << " at " << bandwidth;
      }
    }
  }
}

TEST(ClosedForm, OfPipelinesHasTheirBubbleAndTransfers) {
  const EmulatedLink link{1e8, 1e-5};
  for (const char* method : {"gpipe", "one_f_one_b", "modular_pipeline"}) {
    for (const std::int64_t data : {1, 2}) {
      const ScheduleCase c{.method = method, .layers = 6, .micro_batches = 5, .data = data, .pipeline = 2};
      EXPECT_NEAR(form_over_step(c, link), 1, 0.02) << to_string(c);
    }
  }
}

TEST(ClosedForm, OfOneRankIsItsCompute) {
  EXPECT_NEAR(form_over_step({.method = "data_parallel", .layers = 3, .micro_batches = 2}, {}), 1, 1e-12);
}

TEST(ClosedForm, ThatDoesNotApplySaysWhy) {
  const auto reason = [](const ScheduleCase& c, const EmulatedLink& link) {
    const EmulatedLink known{1e9, 0};
    const Recorded recorded = record(c, known);
    const ClosedForm form =
        closed_form_of(recorded.schedule, Precision{}, link, recorded.measurement, recorded.trace, 0);
    EXPECT_FALSE(form.step_time_s);
    return form.reason;
  };
  const EmulatedLink link{1e9, 0};
  EXPECT_THAT(reason({.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 2}, {}),
              HasSubstr("not emulated"));
  EXPECT_THAT(reason({.method = "data_parallel",
                      .layers = 4,
                      .micro_batches = 2,
                      .data = 2,
                      .zero_stage = 3,
                      .resident_layers = 1},
                     link),
              HasSubstr("two resident layers"));
  EXPECT_THAT(
      reason({.method = "gpipe", .layers = 4, .micro_batches = 2, .data = 2, .pipeline = 2, .zero_stage = 2}, link),
      HasSubstr("ZeRO-2"));
}

Json entry_with_ratio(const Json& ratio) {
  Json run = {{"name", "r"}, {"run", "r"}, {"sweep", Json::object()}, {"status", "ok"}};
  run["metrics"]["step_time_over_closed_form"] = {{"direction", "lower"}, {"median", ratio}};
  if (ratio.is_null()) {
    run["metrics"]["step_time_over_closed_form"]["reason"] = "no form";
  }
  return Json::array({run});
}

TEST(ClosedForm, IsExpectedWithoutAnotherRun) {
  Json document = fakes::small_scenario();
  document["runs"] = Json::parse(R"([{"name": "r", "method": "data_parallel"}])");
  document["expect"] = Json::parse(R"([{"metric": "step_time_over_closed_form", "of": "r", "at_most": 1.15}])");
  const Scenario scenario = fakes::read(document);
  const auto judged = [&](const Json& ratio) { return evaluate_expectations(scenario, entry_with_ratio(ratio))[0]; };
  EXPECT_TRUE(judged(1.14)["met"].get<bool>());
  EXPECT_FALSE(judged(1.16)["met"].get<bool>());
  EXPECT_FALSE(judged(nullptr)["met"].get<bool>());
  EXPECT_THAT(judged(nullptr)["reason"].get<std::string>(), HasSubstr("no form"));
  EXPECT_EQ(describe_expectation(judged(1.14)), "step_time_over_closed_form of r: 1.14 (at most 1.15): met");

  document["expect"][0]["over"] = "r";
  EXPECT_THAT(fakes::refusal(document.dump()), HasSubstr("expect[0].over is only for metric"));
  document["expect"] = Json::parse(R"([{"metric": "step_time_s", "of": "r", "at_most": 1.15}])");
  EXPECT_THAT(fakes::refusal(document.dump()), HasSubstr("expect[0].over is missing"));
}

}  // namespace
}  // namespace lamina
