#include "impl/harness/step_plan.h"

#include <array>
#include <utility>

#include "impl/base/error.h"

namespace lamina {
namespace {

using enum analysis::Order;

// Methods by the order that the forms know them by. Layered accumulation has two: in one group and in several.
constexpr std::array<std::pair<std::string_view, analysis::Order>, 7> kOrders{{
    {"data_parallel", depth_first},
    {"layered_accumulation", layered},
    {"layered_accumulation", hybrid},
    {"gpipe", gpipe},
    {"one_f_one_b", one_forward_one_backward},
    {"interleaved_one_f_one_b", interleaved},
    {"modular_pipeline", modular},
}};

}  // namespace

analysis::Order order_of(const Plan& plan) {
  for (const auto& [method, order] : kOrders) {
    if (plan.method == method) {
      return order == layered && plan.groups > 1 ? hybrid : order;
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

PlanRequest request_of(const analysis::StepPlan& plan) {
  PlanRequest request;
  for (const auto& [method, order] : kOrders) {
    if (plan.order == order) {
      request.method = method;
    }
  }
  request.parallel = {.data = plan.data, .pipeline = plan.pipeline, .tensor = 1};
  request.zero_stage = plan.zero_stage;
  request.recompute = plan.recompute;
  request.keep_full_gradient = plan.keep_full_gradient;
  if (plan.order == hybrid || plan.order == modular) {
    request.groups = plan.groups;
  }
  if (plan.order == interleaved) {
    request.chunks = plan.chunks;
  }
  return request;
}

}  // namespace lamina
