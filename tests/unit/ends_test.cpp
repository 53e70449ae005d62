// What impl/analysis/ends.h says of the head, against verified schedules: m times its own time, in every order.
#include "impl/analysis/ends.h"
#include "exactness_cases.h"

namespace lamina {
namespace {

class Head : public testing::TestWithParam<const char*> {};

TEST_P(Head, LengthensTheStepOncePerMicroBatch) {
  Dice heads(7);
  for_each_case(
      110,
      [](Dice& dice, Case& c) {
        c.schedule.method = GetParam();
        const std::string_view method = c.schedule.method;
        if (method == "interleaved_one_f_one_b") {
          draw_chunks(dice, c);
          c.schedule.micro_batches = c.schedule.pipeline * dice.whole(1, 3);
        } else if (method == "data_parallel" || method == "layered_accumulation") {
          c.schedule.layers = dice.whole(1, 9);
          c.schedule.micro_batches = dice.whole(1, 8);
        } else {
          draw_layers(dice, c, true);
          c.schedule.micro_batches = dice.whole(1, 10);
        }
      },
      [&](const Case& c) {
        const Schedule schedule = verified(c.schedule);
        const analysis::Rates rates{
            .flops_per_s = heads.real(40, 4000), .tensor_bytes_per_s = 1, .network_bytes_per_s = 1};
        const ModelShape& model = schedule.plan.model;
        const double head_s = analysis::head_time(model, 1, 1, rates);
        const OpCost layers = layer_costs(c.times);
        const double took = simulate(schedule, [&](std::int32_t rank, const Op& op) {
                              return op.kind == OpKind::loss ? head_s : layers(rank, op);
                            }).step_time_s;
        const double form =
            form_of(schedule, c.times) + analysis::end_times(step_plan_of(schedule.plan), model, rates, {}, 1).head_s;
        EXPECT_NEAR(took / form, 1, kClose);
      });
}

INSTANTIATE_TEST_SUITE_P(Methods, Head,
                         testing::Values("data_parallel", "layered_accumulation", "gpipe", "one_f_one_b",
                                         "interleaved_one_f_one_b", "modular_pipeline"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace lamina
