// GPipe (arXiv 1811.06965): consecutive layers a rank, all micro-batches forward, then all backward.
#include "baselines/baselines.h"
#include "baselines/pipelines.h"

namespace lamina {
namespace {

ComputeOrder order(const Plan& plan) {
  ComputeOrder ranks;
  for (std::int64_t rank = 0; rank < plan.parallel.pipeline; ++rank) {
    std::vector<ComputeStep>& steps = ranks.emplace_back();
    for (const bool forward : {true, false}) {
      for (std::int32_t micro_batch = 0; micro_batch < plan.micro_batches; ++micro_batch) {
        append_pass(steps, forward, stage_layers(plan, rank), micro_batch, 0);
      }
    }
  }
  return ranks;
}

}  // namespace

const Method gpipe{"gpipe", "pipeline of consecutive layers, all forward passes before the backward passes",
                   resolve_ordinary_pipeline, consecutive_owner, order};

}  // namespace lamina
