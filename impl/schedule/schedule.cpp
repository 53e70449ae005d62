#include "impl/schedule/schedule.h"

#include <fmt/format.h>

namespace lamina {

std::string_view name_of(StreamKind stream) {
  switch (stream) {
    case StreamKind::compute:
      return "compute";
    case StreamKind::data:
      return "data";
    case StreamKind::tensor:
      return "tensor";
    case StreamKind::send_forward:
      return "send_forward";
    case StreamKind::receive_forward:
      return "receive_forward";
    case StreamKind::send_backward:
      return "send_backward";
    case StreamKind::receive_backward:
      return "receive_backward";
    case StreamKind::host:
      return "host";
  }
  return "?";
}

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::forward:
      return "forward";
    case OpKind::loss:
      return "loss";
    case OpKind::backward:
      return "backward";
    case OpKind::send:
      return "send";
    case OpKind::receive:
      return "receive";
    case OpKind::gather:
      return "gather";
    case OpKind::reduce:
      return "reduce";
    case OpKind::all_reduce:
      return "all_reduce";
    case OpKind::update:
      return "update";
    case OpKind::copy_in:
      return "copy_in";
    case OpKind::copy_out:
      return "copy_out";
    case OpKind::count:
      return "count";
    case OpKind::norm:
      return "norm";
    case OpKind::loss_total:
      return "loss_total";
  }
  return "?";
}

std::string_view name_of(Part part) {
  switch (part) {
    case Part::whole:
      return "whole";
    case Part::attention:
      return "attention";
    case Part::mlp:
      return "mlp";
    case Part::embedding:
      return "embedding";
    case Part::head:
      return "head";
  }
  return "?";
}

std::string_view name_of(SlotKind kind) {
  switch (kind) {
    case SlotKind::parameters:
      return "parameters";
    case SlotKind::parameter_shard:
      return "parameter_shard";
    case SlotKind::gradient:
      return "gradient";
    case SlotKind::gradient_shard:
      return "gradient_shard";
    case SlotKind::checkpoint:
      return "checkpoint";
    case SlotKind::saved:
      return "saved";
    case SlotKind::activation_gradient:
      return "activation_gradient";
    case SlotKind::target_count:
      return "target_count";
    case SlotKind::loss_sum:
      return "loss_sum";
    case SlotKind::gradient_norm:
      return "gradient_norm";
  }
  return "?";
}

std::string describe(const Op& op) {
  std::string text{name_of(op.kind)};
  if (!is_control(op.kind)) {
    text += " " + name_of(op.unit);
  }
  if (op.part == Part::attention || op.part == Part::mlp) {
    text += fmt::format(" {}", name_of(op.part));
  }
  if (op.micro_batch >= 0) {
    text += fmt::format(" micro-batch {}", op.micro_batch);
  }
  if (op.kind == OpKind::send) {
    text += fmt::format(" to {}", op.peer);
  }
  if (op.kind == OpKind::receive) {
    text += fmt::format(" from {}", op.peer);
  }
  return text;
}

}  // namespace lamina
