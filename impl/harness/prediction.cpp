#include "impl/harness/prediction.h"

#include <algorithm>
#include <cmath>

#include "impl/harness/step_plan.h"

namespace lamina {
namespace {

// A pipeline rank's part of the model. The embedding lives with the first layer, the head with the last.
struct Share {
  std::int64_t rank = 0;
  std::int64_t layers = 0;
  std::int64_t boundaries = 0;  // crossed by this rank's sends, for each micro-batch: both directions
  bool embedding = false;
  bool head = false;
};

std::vector<Share> shares_of(const Method& method, const Plan& plan) {
  std::vector<Share> shares(static_cast<std::size_t>(plan.parallel.pipeline));
  const std::int64_t last = plan.model.layers - 1;
  for (std::int64_t layer = 0; layer <= last; ++layer) {
    const std::int64_t rank = method.owner(plan, layer);
    const auto elsewhere = [&](std::int64_t neighbour) {
      return neighbour >= 0 && neighbour <= last && method.owner(plan, neighbour) != rank ? 1 : 0;
    };
    Share& share = shares.at(static_cast<std::size_t>(rank));
    share.rank = rank;
    share.layers += 1;
    share.boundaries += elsewhere(layer - 1) + elsewhere(layer + 1);
    share.embedding |= layer == 0;
    share.head |= layer == last;
  }
  return shares;
}

std::int64_t padded_parameters(const Plan& plan, Unit unit) {
  return padded(unit_parameters(plan.model, unit), plan.parallel.data);
}

// An activation at a unit boundary: elements.
std::int64_t activation_elements(const Plan& plan) {
  return plan.micro_batch_size * plan.model.sequence * plan.model.hidden;
}

// What so many gathers and reductions of a unit send: elements less the rank's own part each time.
UnitTraffic bytes_of_unit(const analysis::DataTraffic& times, const Plan& plan, Unit unit, const Precision& precision) {
  const std::int64_t once = padded_parameters(plan, unit) / plan.parallel.data * (plan.parallel.data - 1);
  return {std::llround(times.reductions) * once * bytes_of(precision.reduce),
          std::llround(times.gathers) * once * bytes_of(precision.compute)};
}

TrafficPrediction predict_traffic(const Share& share, const Plan& plan, const Precision& precision) {
  const analysis::DataTraffic layers =
      analysis::data_traffic(step_plan_of(plan), share.layers, plan.resident_layers, share.rank);
  // The embedding and the head are visited as often as the layer they stand next to. They have buffers of their own,
  // where they stay for the step once they are gathered.
  const analysis::DataTraffic end{.gathers = plan.zero_stage == 0 ? 0.0 : 1.0,
                                  .reductions = layers.reductions / static_cast<double>(share.layers)};
  TrafficPrediction traffic;
  traffic.layers = bytes_of_unit(layers, plan, layer_unit(0), precision);
  if (share.embedding) {
    traffic.embedding = bytes_of_unit(end, plan, embedding_unit(), precision);
  }
  if (share.head) {
    traffic.head = bytes_of_unit(end, plan, head_unit(), precision);
  }
  traffic.pipeline_send =
      share.boundaries * plan.micro_batches * activation_elements(plan) * bytes_of(precision.compute);
  return traffic;
}

// Inputs of the head that wait at once for its turn: of as many micro-batches as go through the last layer before it.
std::int64_t inputs_of_head(const Share& share, const analysis::StepPlan& plan) {
  switch (plan.order) {
    case analysis::Order::gpipe:
      return share.layers == 1 ? plan.micro_batches : 1;
    case analysis::Order::one_forward_one_backward:
    case analysis::Order::interleaved:
      return 1;
    default:
      return plan.micro_batches / plan.group_count();
  }
}

MemoryPrediction predict_memory(const Share& share, const Plan& plan, const Precision& precision,
                                std::int64_t moments) {
  const std::int64_t stored = bytes_of(precision.compute);
  const std::int64_t wide = bytes_of(precision.wide());
  const std::int64_t data = plan.parallel.data;
  const std::int64_t ends = (share.embedding ? padded_parameters(plan, embedding_unit()) : 0) +
                            (share.head ? padded_parameters(plan, head_unit()) : 0);
  const std::int64_t layer = padded_parameters(plan, layer_unit(0));
  const std::int64_t whole = ends + share.layers * layer;
  const bool whole_gradient = plan.zero_stage < 2 || plan.keep_full_gradient;

  MemoryPrediction memory;
  memory.parameters = stored * (plan.zero_stage < 3 ? whole : whole / data);
  memory.gradients = wide * (whole_gradient ? whole : whole / data);
  memory.optimizer =
      wide * (moments + (precision.has_masters() ? 1 : 0)) * (plan.zero_stage < 1 ? whole : whole / data);

  const analysis::StepPlan step = step_plan_of(plan);
  analysis::Stages stages = analysis::stages_of(plan.model.layers, plan.parallel.pipeline);
  stages.layers_each = static_cast<double>(share.layers);
  const std::int64_t inputs =
      std::llround(analysis::layers_kept(step, stages, share.rank)) + (share.head ? inputs_of_head(share, step) : 0);
  memory.checkpoints = stored * activation_elements(plan) * inputs;

  if (plan.zero_stage == 3) {
    memory.gathered += stored * (ends + layer * std::min(plan.resident_layers, share.layers));
  }
  if (plan.zero_stage >= 2 && !whole_gradient) {
    const std::int64_t visits = std::llround(analysis::data_traffic(step, share.layers, 0, share.rank).reductions);
    memory.gathered += wide * (ends + layer * std::min<std::int64_t>(2, visits));
  }
  return memory;
}

}  // namespace

Prediction predict(const Method& method, const Plan& plan, const Precision& precision,
                   OptimizerConfig::Kind optimizer) {
  Prediction prediction;
  if (plan.parallel.tensor != 1) {
    prediction.reason = "the forms here cover one tensor rank";
    return prediction;
  }
  for (const Share& share : shares_of(method, plan)) {
    prediction.memory.push_back(predict_memory(share, plan, precision, moments_of(optimizer)));
    if (const auto reason = analysis::traffic_not_covered(step_plan_of(plan), share.layers)) {
      prediction.reason = *reason;
    } else {
      prediction.traffic.push_back(predict_traffic(share, plan, precision));
    }
  }
  if (!prediction.reason.empty()) {
    prediction.traffic.clear();
  }
  return prediction;
}

}  // namespace lamina
