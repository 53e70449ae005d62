// What the ordinary pipelines share.
#pragma once

#include "impl/schedule/order.h"

namespace lamina {

// The consecutive layers of a pipeline rank.
inline Range stage_layers(const Plan& plan, std::int64_t rank) {
  return split_evenly(plan.model.layers, plan.parallel.pipeline)[static_cast<std::size_t>(rank)];
}

inline void resolve_ordinary_pipeline(Plan& plan, const PlanRequest& request) {
  refuse_chunks(plan, request);
  refuse_groups(plan, request);
}

}  // namespace lamina
