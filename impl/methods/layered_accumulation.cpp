// Layered gradient accumulation (arXiv 2106.02679): all micro-batches through one layer, then the next layer, and
// back likewise, so that a layer's reduction has the backward of every earlier layer to hide behind. `groups` > 1 is
// the hybrid order; groups equal to the micro-batches is depth-first accumulation.
#include <numeric>

#include "impl/methods/methods.h"
#include "impl/schedule/order.h"

namespace lamina {
namespace {

void resolve(Plan& plan, const PlanRequest& request) {
  require_no_pipeline(plan);
  refuse_chunks(plan, request);
  require_groups_divide(plan);
}

std::int64_t owner(const Plan&, std::int64_t) { return 0; }

ComputeOrder order(const Plan& plan) {
  std::vector<std::int32_t> layers(static_cast<std::size_t>(plan.model.layers));
  std::iota(layers.begin(), layers.end(), 0);
  return {layered_order(layers, split_evenly(plan.micro_batches, plan.groups))};
}

}  // namespace

const Method layered_accumulation{"layered_accumulation",
                                  "all micro-batches through one layer, then the next (the paper's method)", resolve,
                                  owner, order};

}  // namespace lamina
