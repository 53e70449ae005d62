// 1F1B (PipeDream-Flush, arXiv 2006.09503): as GPipe, but a rank starts backward as soon as it can and then
// alternates, so that at most L - r micro-batches are in flight on rank r.
#include <algorithm>

#include "baselines/baselines.h"
#include "baselines/pipelines.h"

namespace lamina {
namespace {

ComputeOrder order(const Plan& plan) {
  const auto micro_batches = static_cast<std::int32_t>(plan.micro_batches);
  ComputeOrder ranks;
  for (std::int64_t rank = 0; rank < plan.parallel.pipeline; ++rank) {
    const Range layers = stage_layers(plan, rank);
    const auto ahead = static_cast<std::int32_t>(
        std::min(plan.micro_batches, plan.parallel.pipeline - 1 - rank));  // forward passes before the first backward
    std::vector<ComputeStep>& steps = ranks.emplace_back();
    for (std::int32_t i = 0; i < micro_batches + ahead; ++i) {
      if (i < micro_batches) {
        append_pass(steps, true, layers, i, 0);
      }
      if (i >= ahead) {
        append_pass(steps, false, layers, i - ahead, 0);
      }
    }
  }
  return ranks;
}

}  // namespace

const Method one_f_one_b{"one_f_one_b", "pipeline of consecutive layers, forward and backward alternating",
                         resolve_ordinary_pipeline, consecutive_owner, order};

}  // namespace lamina
