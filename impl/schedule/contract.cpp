#include "impl/schedule/contract.h"

namespace lamina {
namespace {

SlotKind reduced_kind(const Plan& plan) {
  return plan.zero_stage >= 2 && !plan.keep_full_gradient ? SlotKind::gradient_shard : SlotKind::gradient;
}

SlotKind stored_kind(const Plan& plan) {
  return plan.zero_stage == 3 ? SlotKind::parameter_shard : SlotKind::parameters;
}

SlotUse backward_contract(const Op& op, const Plan& plan) {
  using enum SlotKind;
  if (op.unit.kind == UnitKind::embedding) {
    return {{activation_gradient}, {gradient}};
  }
  if (plan.recompute == Recompute::full) {
    return {{parameters, checkpoint, activation_gradient}, {activation_gradient, gradient, saved}};
  }
  return {{parameters, checkpoint, activation_gradient, saved}, {activation_gradient, gradient}};
}

}  // namespace

SlotUse contract_of(const Op& op, const Plan& plan, std::size_t reduced_units) {
  using enum SlotKind;
  switch (op.kind) {
    case OpKind::forward:
      return op.unit.kind == UnitKind::embedding ? SlotUse{{parameters}, {checkpoint}}
                                                 : SlotUse{{parameters, checkpoint}, {checkpoint, saved}};
    case OpKind::loss:
      return {{parameters, checkpoint, target_count, loss_sum}, {activation_gradient, gradient, loss_sum, saved}};
    case OpKind::backward:
      return backward_contract(op, plan);
    case OpKind::gather:
      return {{stored_kind(plan)}, {parameters}};
    case OpKind::reduce:
      return {{gradient}, {reduced_kind(plan)}};
    case OpKind::all_reduce:
      return {{gradient}, {gradient}};
    case OpKind::update: {
      SlotUse use{{reduced_kind(plan)}, {stored_kind(plan)}};
      if (plan.update_after_norm) {
        use.reads.push_back(gradient_norm);
      }
      return use;
    }
    case OpKind::count:
      return {{}, {target_count, loss_sum}};
    case OpKind::norm:
      return {std::vector<SlotKind>(reduced_units, reduced_kind(plan)), {gradient_norm}};
    case OpKind::loss_total:
      return {{loss_sum}, {loss_sum}};
    case OpKind::send:
    case OpKind::receive:
    case OpKind::copy_in:
    case OpKind::copy_out:
      break;  // one slot of either kind: the verifier looks at it itself
  }
  return {};
}

StreamKind stream_of(OpKind kind, bool gradients) {
  switch (kind) {
    case OpKind::forward:
    case OpKind::loss:
    case OpKind::backward:
    case OpKind::update:
      return StreamKind::compute;
    case OpKind::send:
      return gradients ? StreamKind::send_backward : StreamKind::send_forward;
    case OpKind::receive:
      return gradients ? StreamKind::receive_backward : StreamKind::receive_forward;
    case OpKind::copy_in:
    case OpKind::copy_out:
      return StreamKind::host;
    case OpKind::gather:
    case OpKind::reduce:
    case OpKind::all_reduce:
    case OpKind::count:
    case OpKind::norm:
    case OpKind::loss_total:
      return StreamKind::data;
  }
  return StreamKind::compute;
}

std::int64_t elements_of(const Op& op, const Plan& plan) {
  switch (op.kind) {
    case OpKind::send:
    case OpKind::receive:
      return plan.micro_batch_size * plan.model.sequence * plan.model.hidden;
    case OpKind::gather:
    case OpKind::reduce:
    case OpKind::all_reduce:
      return padded(unit_parameters(plan.model, op.unit), plan.parallel.data);
    case OpKind::count:
    case OpKind::norm:
    case OpKind::loss_total:
      return 1;
    default:
      return 0;
  }
}

}  // namespace lamina
