// Modular pipeline parallelism (arXiv 2106.02679): layer i lives on pipeline rank i mod L and every rank runs the
// layered order of its layers, so that the bubble is L-1 layer passes instead of L-1 stage passes.
#include "impl/methods/methods.h"
#include "impl/schedule/order.h"

namespace lamina {
namespace {

void resolve(Plan& plan, const PlanRequest& request) {
  refuse_chunks(plan, request);
  require_groups_divide(plan);
}

std::int64_t owner(const Plan& plan, std::int64_t layer) { return layer % plan.parallel.pipeline; }

ComputeOrder order(const Plan& plan) {
  ComputeOrder ranks;
  for (std::int64_t rank = 0; rank < plan.parallel.pipeline; ++rank) {
    std::vector<std::int32_t> layers;
    for (std::int64_t layer = rank; layer < plan.model.layers; layer += plan.parallel.pipeline) {
      layers.push_back(static_cast<std::int32_t>(layer));
    }
    ranks.push_back(layered_order(layers, split_evenly(plan.micro_batches, plan.groups)));
  }
  return ranks;
}

}  // namespace

const Method modular_pipeline{"modular_pipeline", "layer i on pipeline rank i mod L, run layered (the paper's method)",
                              resolve, owner, order};

}  // namespace lamina
