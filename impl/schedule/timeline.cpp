#include <algorithm>
#include <map>
#include <optional>

#include "impl/base/error.h"
#include "impl/schedule/passes.h"

namespace lamina {
namespace {

constexpr std::int64_t kForwardTicks = 1024;
constexpr std::int64_t kBackwardTicks = 2048;
constexpr std::int64_t kSmallTicks = 1;

std::int64_t ticks_of(const ComputeOp& op, bool full_recompute) {
  if (op.unit.kind != UnitKind::layer) {
    return kSmallTicks;
  }
  if (op.kind == OpKind::forward) {
    return kForwardTicks;
  }
  return kBackwardTicks + (full_recompute ? kForwardTicks : 0);
}

// What a compute op needs from another one: (kind, unit, micro-batch) of the producer; nothing for the embedding.
struct Needs {
  OpKind kind;
  Unit unit;
};
std::optional<Needs> needs_of(const ComputeOp& op, std::int32_t last_layer) {
  const std::int32_t layer = op.unit.layer;
  if (op.kind == OpKind::forward) {
    if (op.unit.kind == UnitKind::embedding) {
      return std::nullopt;
    }
    return Needs{OpKind::forward, layer == 0 ? embedding_unit() : layer_unit(layer - 1)};
  }
  if (op.kind == OpKind::loss) {
    return Needs{OpKind::forward, layer_unit(last_layer)};
  }
  if (op.unit.kind == UnitKind::embedding) {
    return Needs{OpKind::backward, layer_unit(0)};
  }
  return layer == last_layer ? Needs{OpKind::loss, head_unit()} : Needs{OpKind::backward, layer_unit(layer + 1)};
}

}  // namespace

std::vector<std::vector<Timing>> unit_timeline(const std::vector<std::vector<ComputeOp>>& order,
                                               const std::vector<std::int64_t>& owner, bool full_recompute) {
  using Key = std::tuple<OpKind, Unit, std::int32_t>;
  const auto last_layer = static_cast<std::int32_t>(owner.size()) - 1;
  std::map<Key, std::int64_t> end_of;
  std::vector<std::vector<Timing>> timing(order.size());
  std::size_t missing = 0;
  for (const auto& ops : order) {
    missing += ops.size();
  }
  // Starts follow from the order alone, so ranks may be visited in any sequence until none gets further.
  for (bool progress = true; progress && missing > 0;) {
    progress = false;
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      while (timing[rank].size() < order[rank].size()) {
        const ComputeOp& op = order[rank][timing[rank].size()];
        std::int64_t start = timing[rank].empty() ? 0 : timing[rank].back().end;
        if (const auto needs = needs_of(op, last_layer)) {
          const auto producer = end_of.find({needs->kind, needs->unit, op.micro_batch});
          if (producer == end_of.end()) {
            break;
          }
          start = std::max(start, producer->second);
        }
        const std::int64_t end = start + ticks_of(op, full_recompute);
        timing[rank].push_back({start, end});
        end_of[{op.kind, op.unit, op.micro_batch}] = end;
        progress = true;
        --missing;
      }
    }
  }
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    if (timing[rank].size() < order[rank].size()) {
      const ComputeOp& stuck = order[rank][timing[rank].size()];
      throw UsageError(fmt::format("the compute order deadlocks: pipeline rank {} cannot start {} {} micro-batch {}",
                                   rank, name_of(stuck.kind), name_of(stuck.unit), stuck.micro_batch));
    }
  }
  return timing;
}

}  // namespace lamina
