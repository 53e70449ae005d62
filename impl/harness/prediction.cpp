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

// The table "data-parallel bytes sent", for the layers of the rank.
Times times_of_layers(const Plan& plan) {
  const std::int64_t layers = plan.model.layers;
  const std::int64_t groups = plan.groups;
  const std::int64_t reductions = plan.keep_full_gradient ? layers : groups * layers;
  switch (plan.zero_stage) {
    case 0:
      return {0, 2 * layers};
    case 1:
      return {layers, layers};
    case 2:
      return {layers, reductions};
    default:
      break;
  }
  if (plan.resident_layers >= layers) {
    return {layers, reductions};  // all of them stay after their first gather
  }
  // Layers that stay across a turn: from forward to backward, and from one group to the next.
  return {2 * groups * layers - plan.resident_layers * (2 * groups - 1), reductions};
}

// The embedding and the head have buffers of their own, where they stay for the step once they are gathered.
Times times_of_end(const Plan& plan) {
  const std::int64_t reductions = plan.keep_full_gradient || plan.zero_stage < 2 ? 1 : plan.groups;
  return plan.zero_stage == 0 ? Times{0, 2} : Times{1, reductions};
}

UnitTraffic bytes_of_unit(const Times& times, const Plan& plan, std::int64_t parameters, const Precision& precision) {
  const std::int64_t part = padded(parameters, plan.parallel.data) / plan.parallel.data;
  const std::int64_t once = (plan.parallel.data - 1) * part;  // elements of a reduce-scatter or a gather
  return {times.reductions * once * bytes_of(precision.reduce), times.gathers * once * bytes_of(precision.compute)};
}

TrafficPrediction predict_traffic(const Plan& plan, const Precision& precision) {
  const auto bytes = [&](const Times& times, Unit unit) {
    return bytes_of_unit(times, plan, unit_parameters(plan.model, unit), precision);
  };
  return {.embedding = bytes(times_of_end(plan), embedding_unit()),
          .layers = bytes(times_of_layers(plan), layer_unit(0)),
          .head = bytes(times_of_end(plan), head_unit())};
}

MemoryPrediction predict_memory(const Plan& plan, const Precision& precision, std::int64_t moments) {
  const std::int64_t stored = bytes_of(precision.compute);
  const std::int64_t wide = bytes_of(precision.wide());
  const ModelShape& model = plan.model;
  const std::int64_t data = plan.parallel.data;
  const std::int64_t ends =
      padded(unit_parameters(model, embedding_unit()), data) + padded(unit_parameters(model, head_unit()), data);
  const std::int64_t layer = padded(unit_parameters(model, layer_unit(0)), data);
  const std::int64_t whole = ends + model.layers * layer;

  const bool whole_gradient = plan.zero_stage < 2 || plan.keep_full_gradient;
  MemoryPrediction memory;
  memory.parameters = stored * (plan.zero_stage < 3 ? whole : whole / data);
  memory.gradients = wide * (whole_gradient ? whole : whole / data);
  memory.optimizer =
      wide * (moments + (precision.has_masters() ? 1 : 0)) * (plan.zero_stage < 1 ? whole : whole / data);
  const std::int64_t boundaries = model.layers + 1;  // the input of every layer, and of the head
  const std::int64_t activation = plan.micro_batch_size * model.sequence * model.hidden;
  memory.checkpoints = stored * activation * boundaries * (plan.micro_batches / plan.groups);
  if (plan.zero_stage == 3) {
    memory.gathered += stored * (ends + layer * std::min(plan.resident_layers, model.layers));
  }
  if (plan.zero_stage >= 2 && !whole_gradient) {
    memory.gathered += wide * (ends + layer * std::min<std::int64_t>(2, model.layers * plan.groups));
  }
  return memory;
}

}  // namespace

Prediction predict(const Plan& plan, const Precision& precision, OptimizerConfig::Kind optimizer) {
  if (plan.parallel.pipeline != 1 || plan.parallel.tensor != 1) {
    return {.traffic = {}, .memory = {}, .reason = "the forms here cover one pipeline and one tensor rank"};
  }
  return {.traffic = predict_traffic(plan, precision),
          .memory = predict_memory(plan, precision, moments_of(optimizer)),
          .reason = {}};
}

}  // namespace lamina
