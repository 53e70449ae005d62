#include "impl/harness/closed_form.h"

#include <algorithm>
#include <vector>

#include "impl/analysis/forms.h"
#include "impl/harness/step_plan.h"

namespace lamina {
namespace {

struct LayerPasses {
  std::vector<double> forward_s, backward_s;
};

LayerPasses layer_passes(const Schedule& schedule, const Trace& trace, std::int64_t warmup_steps) {
  LayerPasses passes;
  for (const TraceEvent& event : trace) {
    const auto rank = static_cast<std::size_t>(coordinates_of(event.rank, schedule.plan.parallel).pipeline);
    const Op& op = schedule.programs.at(rank).ops.at(static_cast<std::size_t>(event.op));
    if (event.step < warmup_steps || op.unit.kind != UnitKind::layer) {
      continue;
    }
    if (op.kind == OpKind::forward) {
      passes.forward_s.push_back(event.end_s - event.start_s);
    } else if (op.kind == OpKind::backward) {
      passes.backward_s.push_back(event.end_s - event.start_s);
    }
  }
  return passes;
}

// A gather or reduce-scatter of a unit over the data-parallel ranks.
double ring_time(const Plan& plan, Unit unit, RealType wire, const EmulatedLink& link) {
  const auto ranks = static_cast<double>(plan.parallel.data);
  const double bytes = analysis::padded_bytes(static_cast<double>(unit_parameters(plan.model, unit)),
                                              static_cast<double>(bytes_of(wire)), ranks);
  return analysis::ring_gather_time(bytes, ranks, link.bandwidth_bits_per_s / 8) + (ranks - 1) * link.latency_s;
}

std::string why_not(const Plan& plan, const EmulatedLink& link) {
  if (plan.parallel.ranks() > 1 && !(link.bandwidth_bits_per_s > 0)) {
    return "the link is not emulated: its bandwidth is not known";
  }
  if (plan.zero_stage == 3 && (plan.resident_layers != 2 || plan.prefetch_layers != 1)) {
    return "the forms of ZeRO-3 have two resident layers and a prefetch of one";
  }
  return "";
}

}  // namespace

ClosedForm closed_form_of(const Schedule& schedule, const Precision& precision, const EmulatedLink& link,
                          const Measurement& measurement, const Trace& trace, std::int64_t warmup_steps) {
  const Plan& plan = schedule.plan;
  ClosedForm result;
  const LayerPasses passes = layer_passes(schedule, trace, warmup_steps);
  if (passes.forward_s.empty() || passes.backward_s.empty()) {
    result.reason = "no layer was timed";
    return result;
  }
  result.forward_s = median(passes.forward_s);
  result.backward_s = median(passes.backward_s);
  if (result.reason = why_not(plan, link); !result.reason.empty()) {
    return result;
  }

  analysis::LayerTimes times;
  times.forward_s = result.forward_s;
  times.backward_s = result.backward_s;
  double embedding_s = 0;
  if (plan.parallel.data > 1) {
    times.gather_s = ring_time(plan, layer_unit(0), precision.compute, link);
    times.reduce_s = ring_time(plan, layer_unit(0), precision.reduce, link);
    times.all_reduce_s = 2 * times.reduce_s;
    const double embedding_reduce_s = ring_time(plan, embedding_unit(), precision.reduce, link);
    embedding_s =
        embedding_reduce_s +  // an all-reduce, or a reduction and a gather
        (plan.zero_stage == 0 ? embedding_reduce_s : ring_time(plan, embedding_unit(), precision.compute, link));
  }
  if (plan.parallel.pipeline > 1) {
    const double elements = static_cast<double>(plan.micro_batch_size) * static_cast<double>(plan.model.sequence) *
                            static_cast<double>(plan.model.hidden);
    times.boundary_s =
        elements * static_cast<double>(bytes_of(precision.compute)) / (link.bandwidth_bits_per_s / 8) + link.latency_s;
  }
  const analysis::StepPlan step_plan = step_plan_of(plan);
  const analysis::Stages stages = analysis::stages_of(plan.model.layers, plan.parallel.pipeline);
  if (const auto reason = analysis::not_covered(step_plan, stages, times)) {
    result.reason = *reason;
    return result;
  }
  // The busiest rank has the most layers: its waiting is the form's compute less its own layers' passes.
  const analysis::StepTime step = analysis::step_time(step_plan, stages, times);
  const double own_passes_s = static_cast<double>(plan.micro_batches) * stages.layers_each * times.both_s();
  const double bubble_s = std::max(0.0, step.work_s + step.bubble_s - own_passes_s);
  const double busy_s = *std::max_element(measurement.rank_busy_s.begin(), measurement.rank_busy_s.end());
  result.step_time_s = busy_s + bubble_s + step.boundary_s + step.exposed_data_s + embedding_s;
  return result;
}

}  // namespace lamina
