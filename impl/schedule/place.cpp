#include <algorithm>

#include "impl/schedule/passes.h"

namespace lamina {

std::vector<std::vector<ComputeOp>> place_embedding_and_head(const ComputeOrder& order, std::int64_t layers) {
  std::vector<std::vector<ComputeOp>> placed(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const std::vector<ComputeStep>& steps = order[rank];
    std::vector<ComputeOp>& ops = placed[rank];
    for (std::size_t begin = 0; begin < steps.size();) {
      const ComputeStep& first = steps[begin];
      const auto same_run = [&](const ComputeStep& step) {
        return step.forward == first.forward && step.layer == first.layer;
      };
      const auto run_end = std::find_if_not(steps.begin() + static_cast<std::ptrdiff_t>(begin), steps.end(), same_run);
      const auto end = static_cast<std::size_t>(run_end - steps.begin());
      const auto add_run = [&](OpKind kind, Unit unit) {
        for (std::size_t i = begin; i < end; ++i) {
          ops.push_back({kind, unit, steps[i].micro_batch, steps[i].group});
        }
      };
      if (first.forward && first.layer == 0) {
        add_run(OpKind::forward, embedding_unit());
      }
      add_run(first.forward ? OpKind::forward : OpKind::backward, layer_unit(first.layer));
      if (first.forward && first.layer == layers - 1) {
        add_run(OpKind::loss, head_unit());
      }
      if (!first.forward && first.layer == 0) {
        add_run(OpKind::backward, embedding_unit());
      }
      begin = end;
    }
  }
  return placed;
}

}  // namespace lamina
