#include <algorithm>
#include <map>
#include <set>

#include "impl/base/error.h"
#include "impl/schedule/passes.h"

namespace lamina {
namespace {

// A visit: consecutive compute ops on one unit in one direction. Parameters are gathered, and with ZeRO-2 and 3
// gradients reduced, once a visit.
struct Visit {
  Unit unit;
  OpKind kind = OpKind::forward;
  std::int32_t first = 0;  // compute op
  std::int32_t last = 0;
};

std::vector<Visit> visits_of(const std::vector<ComputeOp>& order) {
  std::vector<Visit> visits;
  for (std::int32_t i = 0; i < std::ssize(order); ++i) {
    const ComputeOp& op = order[static_cast<std::size_t>(i)];
    if (visits.empty() || visits.back().unit != op.unit || visits.back().kind != op.kind) {
      visits.push_back({op.unit, op.kind, i, i});
    }
    visits.back().last = i;
  }
  return visits;
}

bool makes_gradient(OpKind kind) { return kind == OpKind::backward || kind == OpKind::loss; }
bool needs_parameters(const Visit& visit) {
  return !(visit.unit.kind == UnitKind::embedding && visit.kind == OpKind::backward);
}

class Partitioner {
 public:
  Partitioner(const std::vector<ComputeOp>& order, const Plan& plan)
      : order_(order), plan_(plan), visits_(visits_of(order)) {
    result_.before.resize(order.size());
    result_.after.resize(order.size());
    result_.parameter_buffer.assign(order.size(), -1);
    result_.gradient_buffer.assign(order.size(), -1);
    result_.accumulate.assign(order.size(), false);
  }

  PartitionPlan run() {
    if (plan_.zero_stage == 1 || plan_.zero_stage == 2) {
      gather_all_at_start();
    } else if (plan_.zero_stage == 3) {
      gather_by_visit();
    }
    if (plan_.zero_stage <= 1 || plan_.keep_full_gradient) {
      reduce_by_step();
    } else {
      reduce_by_visit();
    }
    return std::move(result_);
  }

 private:
  std::int32_t layer_count() const {
    std::set<Unit> layers;
    for (const Visit& visit : visits_) {
      if (visit.unit.kind == UnitKind::layer) {
        layers.insert(visit.unit);
      }
    }
    return static_cast<std::int32_t>(layers.size());
  }

  // ZeRO-1 and 2: the shards that the last step updated are gathered in the order of their first use.
  void gather_all_at_start() {
    std::set<Unit> gathered;
    for (const Visit& visit : visits_) {
      if (needs_parameters(visit) && gathered.insert(visit.unit).second) {
        result_.before.front().push_back({.kind = OpKind::gather, .unit = visit.unit});
      }
    }
  }

  // ZeRO-3: a visit whose layer is in no buffer gathers it into the least recently used one. That keeps the last
  // layers from forward to backward and the first ones from one group to the next. The embedding and the head have a
  // buffer each and stay in it for the step.
  void gather_by_visit() {
    struct Buffer {
      Unit unit = embedding_unit();  // none yet: a layer's buffer never holds the embedding
      std::int32_t last_visit = -1;
    };
    std::vector<Buffer> buffers(static_cast<std::size_t>(std::min<std::int64_t>(plan_.resident_layers, layer_count())));
    result_.parameter_buffers = static_cast<std::int32_t>(buffers.size());
    std::set<Unit> own_gathered;
    for (std::int32_t v = 0; v < std::ssize(visits_); ++v) {
      const Visit& visit = visits_[static_cast<std::size_t>(v)];
      if (!needs_parameters(visit)) {
        continue;
      }
      if (visit.unit.kind != UnitKind::layer) {
        if (own_gathered.insert(visit.unit).second) {
          add_gather(v, -1, -1);
        }
        continue;
      }
      auto buffer = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.unit == visit.unit; });
      if (buffer == buffers.end()) {
        buffer = std::min_element(buffers.begin(), buffers.end(),
                                  [](const Buffer& a, const Buffer& b) { return a.last_visit < b.last_visit; });
        add_gather(v, static_cast<std::int32_t>(buffer - buffers.begin()), buffer->last_visit);
        buffer->unit = visit.unit;
      }
      buffer->last_visit = v;
      std::fill(result_.parameter_buffer.begin() + visit.first, result_.parameter_buffer.begin() + visit.last + 1,
                static_cast<std::int32_t>(buffer - buffers.begin()));
    }
  }

  // The visit that must be over before a gather for visit v starts, so that it is not more than prefetch_layers layers
  // ahead of its use. The embedding and the head are passed too quickly to count. -1: none.
  std::int32_t prefetch_limit(std::int32_t v) const {
    std::int64_t ahead = plan_.prefetch_layers;
    std::int32_t limit = v - 1;
    for (; limit >= 0; --limit) {
      if (visits_[static_cast<std::size_t>(limit)].unit.kind == UnitKind::layer && ahead-- == 0) {
        break;
      }
    }
    return limit;
  }

  // A gather for visit v may start once the visit that last used its buffer is over, within the prefetch distance.
  void add_gather(std::int32_t v, std::int32_t buffer, std::int32_t buffer_last_visit) {
    const std::int32_t earliest = std::max(buffer_last_visit, prefetch_limit(v));
    PartitionOp gather{.kind = OpKind::gather, .unit = visits_[static_cast<std::size_t>(v)].unit, .buffer = buffer};
    if (earliest < 0) {
      result_.before.front().push_back(gather);
      return;
    }
    gather.not_before = visits_[static_cast<std::size_t>(earliest)].last;
    result_.after[static_cast<std::size_t>(gather.not_before)].push_back(gather);
  }

  // ZeRO-0 and 1, or the full gradient kept: one reduction a unit and step, behind its last contribution.
  void reduce_by_step() {
    std::map<Unit, std::int32_t> last;
    for (std::int32_t i = 0; i < std::ssize(order_); ++i) {
      const ComputeOp& op = order_[static_cast<std::size_t>(i)];
      if (makes_gradient(op.kind)) {
        result_.accumulate[static_cast<std::size_t>(i)] = last.contains(op.unit);
        last[op.unit] = i;
      }
    }
    const OpKind kind = plan_.zero_stage == 0 ? OpKind::all_reduce : OpKind::reduce;
    for (const auto& [unit, i] : last) {
      result_.after[static_cast<std::size_t>(i)].push_back({.kind = kind, .unit = unit});
    }
  }

  // ZeRO-2 and 3: one reduction a visit, from one of two buffers that visits take in turn into the unit's shard.
  void reduce_by_visit() {
    const auto layer_backward = std::count_if(visits_.begin(), visits_.end(), [](const Visit& visit) {
      return visit.unit.kind == UnitKind::layer && makes_gradient(visit.kind);
    });
    result_.gradient_buffers = static_cast<std::int32_t>(std::min<std::int64_t>(2, layer_backward));
    std::int32_t turn = 0;
    std::set<Unit> reduced;
    for (const Visit& visit : visits_) {
      if (!makes_gradient(visit.kind)) {
        continue;
      }
      std::int32_t buffer = -1;
      if (visit.unit.kind == UnitKind::layer) {
        buffer = turn++ % result_.gradient_buffers;
      }
      for (std::int32_t i = visit.first; i <= visit.last; ++i) {
        result_.gradient_buffer[static_cast<std::size_t>(i)] = buffer;
        result_.accumulate[static_cast<std::size_t>(i)] = i != visit.first;
      }
      const bool adds = !reduced.insert(visit.unit).second;
      result_.after[static_cast<std::size_t>(visit.last)].push_back(
          {.kind = OpKind::reduce, .unit = visit.unit, .buffer = buffer, .accumulate = adds});
    }
  }

  const std::vector<ComputeOp>& order_;
  const Plan& plan_;
  std::vector<Visit> visits_;
  PartitionPlan result_;
};

}  // namespace

PartitionPlan partition(const std::vector<ComputeOp>& order, const Plan& plan) {
  LAMINA_CHECK(!order.empty(), "a pipeline rank without compute");
  return Partitioner(order, plan).run();
}

}  // namespace lamina
