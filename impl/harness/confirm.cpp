#include "impl/harness/confirm.h"

#include "impl/base/error.h"
#include "impl/harness/registry.h"
#include "impl/harness/step_plan.h"
#include "impl/schedule/verify.h"

namespace lamina {
namespace {

std::int64_t ops_of(const Schedule& schedule) {
  std::int64_t ops = 0;
  for (const Program& program : schedule.programs) {
    ops += std::ssize(program.ops);
  }
  return ops;
}

}  // namespace

double about_ops(const analysis::StepPlan& plan, std::int64_t layers) {
  const auto micro_batches = static_cast<double>(plan.micro_batches);
  const double passes = 2 * static_cast<double>(layers) + 3;  // embedding twice, head once
  const double transfers = 4 * analysis::boundaries_crossed(plan, layers);
  const auto layers_each = static_cast<std::int64_t>(analysis::stages_of(layers, plan.pipeline).layers_each);
  const analysis::DataTraffic traffic = analysis::data_traffic(plan, layers_each, analysis::kGatheredLayers, 0);
  return micro_batches * (passes + transfers) +
         static_cast<double>(plan.pipeline) * (traffic.gathers + traffic.reductions);
}

OpCost layer_costs(const analysis::LayerTimes& times) {
  return [times](std::int32_t, const Op& op) {
    if (op.kind == OpKind::send || op.kind == OpKind::receive) {
      return times.boundary_s;
    }
    if (op.unit.kind != UnitKind::layer) {
      return 0.0;
    }
    switch (op.kind) {
      case OpKind::forward:
        return times.forward_s;
      case OpKind::backward:
        return times.backward_s;
      case OpKind::gather:
        return times.gather_s;
      case OpKind::reduce:
        return times.reduce_s;
      case OpKind::all_reduce:
        return times.all_reduce_s;
      default:
        return 0.0;
    }
  };
}

Schedule schedule_of_plan(const analysis::StepPlan& plan, const ModelShape& model) {
  const PlanRequest request = request_of(plan);
  const Method& method = method_named(request.method);
  return build_schedule(
      method, resolve_plan(method, model, {.global = plan.batch(), .micro = plan.micro_batch}, request, false));
}

analysis::Confirmation confirm(const analysis::PlanCost& cost, const ModelShape& model, const ConfirmLimits& limits) {
  analysis::Confirmation confirmation;
  if (const double ops = about_ops(cost.plan, model.layers); ops > static_cast<double>(limits.most_ops)) {
    confirmation.reason = fmt::format("its schedule has {:.3g} ops; at most {:.3g} are simulated", ops,
                                      static_cast<double>(limits.most_ops));
    return confirmation;
  }
  Schedule schedule;
  try {
    schedule = schedule_of_plan(cost.plan, model);
  } catch (const UsageError& error) {
    confirmation.reason = error.what();
    return confirmation;
  }
  confirmation.ops = ops_of(schedule);
  if (confirmation.ops <= limits.most_verified_ops_ranks / cost.plan.pipeline) {
    verify(schedule);
    confirmation.verified = true;
  } else {
    confirmation.reason =
        fmt::format("not verified: its schedule has {} ops on {} pipeline ranks; up to {:.3g} ops times ranks are",
                    confirmation.ops, cost.plan.pipeline, static_cast<double>(limits.most_verified_ops_ranks));
  }
  confirmation.step_s = simulate(schedule, layer_costs(cost.layer)).step_time_s;
  return confirmation;
}

const analysis::Confirmation* Confirmer::known(const analysis::PlanCost& cost, const ModelShape& model) const {
  for (const Done& done : done_) {
    if (done.plan == cost.plan && done.times == cost.layer && done.model == model) {
      return &done.confirmation;
    }
  }
  return nullptr;
}

const analysis::Confirmation& Confirmer::operator()(const analysis::PlanCost& cost, const ModelShape& model) {
  if (const analysis::Confirmation* const before = known(cost, model)) {
    return *before;
  }
  return done_.emplace_back(cost.plan, cost.layer, model, confirm(cost, model, limits_)).confirmation;
}

}  // namespace lamina
