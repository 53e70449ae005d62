#include "impl/harness/step_plan.h"

#include <array>
#include <utility>

#include "impl/base/error.h"

namespace lamina {

analysis::Order order_of(const Plan& plan) {
  using enum analysis::Order;
  if (plan.method == "layered_accumulation") {
    return plan.groups == 1 ? layered : hybrid;
  }
  constexpr std::array<std::pair<std::string_view, analysis::Order>, 5> kOrders{{
      {"data_parallel", depth_first},
      {"gpipe", gpipe},
      {"one_f_one_b", one_forward_one_backward},
      {"interleaved_one_f_one_b", interleaved},
      {"modular_pipeline", modular},
  }};
  for (const auto& [method, order] : kOrders) {
    if (plan.method == method) {
      return order;
    }
  }
  throw Error(fmt::format("method {} has no closed form", plan.method));
}

analysis::StepPlan step_plan_of(const Plan& plan) {
  return {.order = order_of(plan),
          .data = plan.parallel.data,
          .pipeline = plan.parallel.pipeline,
          .tensor = plan.parallel.tensor,
          .micro_batch = plan.micro_batch_size,
          .micro_batches = plan.micro_batches,
          .groups = plan.groups,
          .chunks = plan.chunks,
          .zero_stage = plan.zero_stage,
          .keep_full_gradient = plan.keep_full_gradient,
          .recompute = plan.recompute};
}

}  // namespace lamina
