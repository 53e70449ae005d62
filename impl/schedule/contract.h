// The table at OpKind as code: which slots an op of a plan reads and writes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "impl/schedule/schedule.h"

namespace lamina {

struct SlotUse {
  std::vector<SlotKind> reads;
  std::vector<SlotKind> writes;
};

// reduced_units: how many units' reduced gradients the norm of this program reads.
SlotUse contract_of(const Op& op, const Plan& plan, std::size_t reduced_units);

// The stream an op of this kind runs on. gradients: whether a send or receive moves an activation_gradient.
StreamKind stream_of(OpKind kind, bool gradients = false);

// Elements that a communication op of this plan moves; 0 for other ops.
std::int64_t elements_of(const Op& op, const Plan& plan);

}  // namespace lamina
