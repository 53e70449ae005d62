// Plans to test schedules with.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "impl/base/error.h"
#include "impl/harness/registry.h"
#include "impl/schedule/build.h"

namespace lamina {

struct ScheduleCase {
  std::string_view method;
  std::int64_t layers = 1, micro_batches = 1, data = 1, pipeline = 1, groups = 0, chunks = 0;
  int zero_stage = 0;
  Recompute recompute = Recompute::none;
  bool keep_full_gradient = false;
  bool update_after_norm = false;
  std::int64_t resident_layers = 0, prefetch_layers = -1;  // 0 and -1: the method's default
};

inline std::string to_string(const ScheduleCase& c) {
  return fmt::format(
      "{} layers {} micro-batches {} data {} pipeline {} groups {} chunks {} zero {} recompute {} full {} clip {} "
      "resident {} prefetch {}",
      c.method, c.layers, c.micro_batches, c.data, c.pipeline, c.groups, c.chunks, c.zero_stage, name_of(c.recompute),
      c.keep_full_gradient, c.update_after_norm, c.resident_layers, c.prefetch_layers);
}

inline Plan plan_of(const ScheduleCase& c,
                    const ModelShape& shape = {.layers = 0, .hidden = 4, .heads = 1, .sequence = 2, .vocabulary = 3}) {
  PlanRequest request{.method = std::string(c.method),
                      .parallel = {.data = c.data, .pipeline = c.pipeline, .tensor = 1}};
  request.zero_stage = c.zero_stage;
  request.recompute = c.recompute;
  request.keep_full_gradient = c.keep_full_gradient;
  if (c.groups > 0) {
    request.groups = c.groups;
  }
  if (c.chunks > 0) {
    request.chunks = c.chunks;
  }
  if (c.resident_layers > 0) {
    request.resident_layers = c.resident_layers;
  }
  if (c.prefetch_layers >= 0) {
    request.prefetch_layers = c.prefetch_layers;
  }
  ModelShape model = shape;
  model.layers = c.layers;
  return resolve_plan(method_named(c.method), model, {.global = c.data * c.micro_batches, .micro = 1}, request,
                      c.update_after_norm);
}

inline Schedule schedule_of(const ScheduleCase& c) {
  const Plan plan = plan_of(c);
  return build_schedule(method_named(c.method), plan);
}

}  // namespace lamina
