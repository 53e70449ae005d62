// Data parallelism with depth-first gradient accumulation: one micro-batch through all layers, forward and back, then
// the next. Gradients are reduced once a step, behind the last micro-batch's backward.
#include "baselines/baselines.h"
#include "impl/schedule/order.h"

namespace lamina {
namespace {

void resolve(Plan& plan, const PlanRequest& request) {
  require_no_pipeline(plan);
  refuse_chunks(plan, request);
  refuse_groups(plan, request);
  plan.groups = plan.micro_batches;  // depth-first is the hybrid order with one micro-batch a group
}

std::int64_t owner(const Plan&, std::int64_t) { return 0; }

ComputeOrder order(const Plan& plan) {
  const Range layers{0, static_cast<std::int32_t>(plan.model.layers)};
  std::vector<ComputeStep> steps;
  for (std::int32_t micro_batch = 0; micro_batch < plan.micro_batches; ++micro_batch) {
    append_pass(steps, true, layers, micro_batch, micro_batch);
    append_pass(steps, false, layers, micro_batch, micro_batch);
  }
  return {steps};
}

}  // namespace

const Method data_parallel{"data_parallel", "data parallel with depth-first gradient accumulation", resolve, owner,
                           order};

}  // namespace lamina
