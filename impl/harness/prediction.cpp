#include "impl/harness/prediction.h"

#include <algorithm>

#include "impl/base/error.h"

namespace lamina {
namespace {

// Times that a unit's parameters are gathered and its gradient reduced in a step; an all-reduce is two reductions.
struct Times {
  std::int64_t gathers = 0;
  std::int64_t reductions = 0;
};

// The table "data-parallel bytes sent", for `units` units of which each visit of a group gathers `gathers_a_visit`
// times at stage 3 (a layer forward and backward, the head once for both, the embedding forward only).
Times times_of(const Plan& plan, std::int64_t units, std::int64_t gathers_a_visit) {
  const std::int64_t groups = plan.groups;
  const std::int64_t reductions = plan.keep_full_gradient ? units : groups * units;
  switch (plan.zero_stage) {
    case 0:
      return {0, 2 * units};
    case 1:
      return {units, units};
    case 2:
      return {units, reductions};
    default:
      return {gathers_a_visit * groups * units, reductions};
  }
}

UnitTraffic bytes_of_unit(const Times& times, const Plan& plan, std::int64_t parameters, std::int64_t width) {
  const std::int64_t part = padded(parameters, plan.parallel.data) / plan.parallel.data * width;
  const std::int64_t once = (plan.parallel.data - 1) * part;  // a reduce-scatter or a gather
  return {times.reductions * once, times.gathers * once};
}

TrafficPrediction predict_traffic(const Plan& plan, std::int64_t width) {
  const ModelShape& model = plan.model;
  Times layers = times_of(plan, model.layers, 2);
  if (plan.zero_stage == 3 && plan.resident_layers < model.layers) {
    // Layers that stay across a turn: from forward to backward, and from one group to the next.
    layers.gathers -= plan.resident_layers * (2 * plan.groups - 1);
  } else if (plan.zero_stage == 3) {
    layers.gathers = model.layers;  // all of them stay after their first gather
  }
  return {.embedding = bytes_of_unit(times_of(plan, 1, 1), plan, unit_parameters(model, embedding_unit()), width),
          .layers = bytes_of_unit(layers, plan, unit_parameters(model, layer_unit(0)), width),
          .head = bytes_of_unit(times_of(plan, 1, 1), plan, unit_parameters(model, head_unit()), width)};
}

MemoryPrediction predict_memory(const Plan& plan, std::int64_t width, std::int64_t moments) {
  const ModelShape& model = plan.model;
  const std::int64_t data = plan.parallel.data;
  std::int64_t whole = 0;
  for (const Unit unit : {embedding_unit(), head_unit()}) {
    whole += padded(unit_parameters(model, unit), data);
  }
  const std::int64_t layer = padded(unit_parameters(model, layer_unit(0)), data);
  whole += model.layers * layer;

  const bool whole_gradient = plan.zero_stage < 2 || plan.keep_full_gradient;
  MemoryPrediction memory;
  memory.parameters = width * (plan.zero_stage < 3 ? whole : whole / data);
  memory.gradients = width * (whole_gradient ? whole : whole / data);
  memory.optimizer = width * moments * (plan.zero_stage < 1 ? whole : whole / data);
  const std::int64_t boundaries = model.layers + 1;  // the input of every layer, and of the head
  const std::int64_t activation = plan.micro_batch_size * model.sequence * model.hidden;
  memory.checkpoints = width * activation * boundaries * (plan.micro_batches / plan.groups);
  if (plan.zero_stage == 3) {
    memory.gathered += width * layer * std::min(plan.resident_layers, model.layers);
  }
  if (plan.zero_stage >= 2 && !whole_gradient) {
    memory.gathered += width * layer * std::min<std::int64_t>(2, model.layers);
  }
  return memory;
}

}  // namespace

Prediction predict(const Plan& plan, RealType precision, OptimizerConfig::Kind optimizer) {
  if (plan.parallel.pipeline != 1 || plan.parallel.tensor != 1) {
    return {.traffic = {}, .memory = {}, .reason = "the forms here cover one pipeline and one tensor rank"};
  }
  const std::int64_t width = bytes_of(precision);
  return {.traffic = predict_traffic(plan, width),
          .memory = predict_memory(plan, width, moments_of(optimizer)),
          .reason = {}};
}

}  // namespace lamina
