#include "impl/analysis/timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "impl/base/error.h"

namespace lamina::analysis {

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::data:
      return "data";
    case Lane::send_forward:
      return "send forward";
    case Lane::send_backward:
      return "send backward";
  }
  return "?";
}

std::string_view name_of(Work work) {
  switch (work) {
    case Work::forward:
      return "forward";
    case Work::backward:
      return "backward";
    case Work::gather:
      return "gather";
    case Work::reduce:
      return "reduce";
    case Work::all_reduce:
      return "all-reduce";
    case Work::transfer:
      return "transfer";
  }
  return "?";
}

double run_timeline(std::vector<TimelineOp>& ops) {
  struct Stream {
    std::vector<std::size_t> queue;
    std::size_t next = 0;
    double free_s = 0;
  };
  std::map<std::pair<std::int64_t, Lane>, Stream> streams;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    streams[{ops[i].rank, ops[i].lane}].queue.push_back(i);
  }
  std::vector<bool> done(ops.size(), false);
  std::size_t left = ops.size();
  double end = 0;
  bool moved = true;
  while (left > 0 && moved) {
    moved = false;
    for (auto& [key, stream] : streams) {
      while (stream.next < stream.queue.size()) {
        TimelineOp& op = ops[stream.queue[stream.next]];
        double start = stream.free_s;
        bool ready = true;
        for (const std::size_t wait : op.waits) {
          ready = ready && done[wait];
          start = std::max(start, ops[wait].end_s);
        }
        if (!ready) {
          break;
        }
        op.start_s = start;
        op.end_s = stream.free_s = start + op.duration_s;
        done[stream.queue[stream.next++]] = true;
        end = std::max(end, op.end_s);
        --left;
        moved = true;
      }
    }
  }
  LAMINA_CHECK(left == 0, "{} of {} operations wait for each other", left, ops.size());
  return end;
}

namespace {

// A layer and the micro-batches that pass through it in one go, forward or backward.
struct Visit {
  Work work;
  std::int64_t layer;
  std::int64_t group;
};

std::vector<Visit> visits_of(std::int64_t layers, std::int64_t groups) {
  std::vector<Visit> visits;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      visits.push_back({Work::forward, layer, group});
    }
    for (std::int64_t layer = layers - 1; layer >= 0; --layer) {
      visits.push_back({Work::backward, layer, group});
    }
  }
  return visits;
}

// Builds a one-stage timeline visit by visit.
class OneStage {
 public:
  OneStage(const StepPlan& plan, std::int64_t layers, const LayerTimes& times)
      : plan_(plan),
        times_(times),
        visits_(visits_of(layers, plan.group_count())),
        each_(plan.micro_batches / plan.group_count()),
        last_op_of_visit_(visits_.size()) {}

  std::vector<TimelineOp> without_partition() {
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      compute(i, {});
      if (visits_[i].work == Work::backward && visits_[i].group == plan_.group_count() - 1) {
        network(Work::all_reduce, visits_[i], times_.all_reduce_s, {last_op_of_visit_[i]});
      }
    }
    return std::move(ops_);
  }

  // ZeRO-1 and 2: parameters are gathered once, ahead of the first forward visits, into memory of their own; gradients
  // are reduced after the last backward visit of each layer (ZeRO-1) or after every one, from two slots (ZeRO-2).
  std::vector<TimelineOp> partly_partitioned() {
    std::vector<std::size_t> gathers;
    for (const Visit& visit : visits_) {
      if (visit.group == 0 && visit.work == Work::forward) {
        gathers.push_back(network(Work::gather, visit, times_.gather_s, {}));
      }
    }
    std::vector<std::size_t> reductions;
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      const Visit& visit = visits_[i];
      std::vector<std::size_t> waits;
      if (visit.group == 0 && visit.work == Work::forward) {
        waits.push_back(gathers[static_cast<std::size_t>(visit.layer)]);
      }
      const bool backward = visit.work == Work::backward;
      if (backward && plan_.zero_stage == 2 && reductions.size() >= 2) {
        waits.push_back(reductions[reductions.size() - 2]);
      }
      compute(i, waits);
      if (backward && (plan_.zero_stage == 2 || visit.group == plan_.group_count() - 1)) {
        reductions.push_back(network(Work::reduce, visit, times_.reduce_s, {last_op_of_visit_[i]}));
      }
    }
    return std::move(ops_);
  }

  std::vector<TimelineOp> partitioned() {
    find_gathers();
    std::vector<std::size_t> reductions;
    issue_gather(0);
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      const bool backward = visits_[i].work == Work::backward;
      std::vector<std::size_t> waits{*gathered_by_[i]};
      if (backward && reductions.size() >= 2) {
        waits.push_back(reductions[reductions.size() - 2]);  // its gradient slot must be empty again
      }
      // The reduction of the visit before goes ahead of the gather for the visit after, as it is ready earlier.
      if (i + 1 < visits_.size()) {
        issue_gather(i + 1);
      }
      compute(i, waits);
      if (backward && (!plan_.keep_full_gradient || visits_[i].group == plan_.group_count() - 1)) {
        reductions.push_back(network(Work::reduce, visits_[i], times_.reduce_s, {last_op_of_visit_[i]}));
      }
    }
    return std::move(ops_);
  }

 private:
  // Which visits find their layer still in one of the two slots: those whose layer was used one or two visits ago.
  void find_gathers() {
    gathered_by_.resize(visits_.size());
    source_.resize(visits_.size());
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      source_[i] = i;
      // At a turn the order of layers is mirrored: … b a | a b …: distance 1 for the nearest, 3 for the next.
      for (const std::size_t back : {std::size_t{1}, std::size_t{3}}) {
        if (i >= back && visits_[i - back].layer == visits_[i].layer) {
          source_[i] = source_[i - back];
        }
      }
    }
  }

  // Gathers the layer of visit i unless it is resident. Its slot is free once the visit before last is over.
  void issue_gather(std::size_t i) {
    if (source_[i] != i) {
      gathered_by_[i] = gathered_by_[source_[i]];
      return;
    }
    std::vector<std::size_t> waits;
    if (i >= 2) {
      waits.push_back(last_op_of_visit_[i - 2]);
    }
    gathered_by_[i] = network(Work::gather, visits_[i], times_.gather_s, waits);
  }

  void compute(std::size_t i, const std::vector<std::size_t>& waits) {
    const Visit& visit = visits_[i];
    for (std::int64_t j = 0; j < each_; ++j) {
      ops_.push_back({.rank = 0,
                      .lane = Lane::compute,
                      .work = visit.work,
                      .layer = visit.layer,
                      .micro_batch = visit.group * each_ + j,
                      .duration_s = visit.work == Work::forward ? times_.forward_s : times_.backward_s,
                      .waits = j == 0 ? waits : std::vector<std::size_t>{}});
    }
    last_op_of_visit_[i] = ops_.size() - 1;
  }

  std::size_t network(Work work, const Visit& visit, double duration_s, std::vector<std::size_t> waits) {
    ops_.push_back({.rank = 0,
                    .lane = Lane::data,
                    .work = work,
                    .layer = visit.layer,
                    .micro_batch = visit.group,
                    .duration_s = duration_s,
                    .waits = std::move(waits)});
    return ops_.size() - 1;
  }

  const StepPlan& plan_;
  const LayerTimes& times_;
  std::vector<Visit> visits_;
  std::int64_t each_;
  std::vector<std::size_t> last_op_of_visit_;
  std::vector<std::size_t> source_;
  std::vector<std::optional<std::size_t>> gathered_by_;
  std::vector<TimelineOp> ops_;
};

// One compute unit of a pipeline rank: consecutive layers of one chunk, one micro-batch, one direction.
struct Unit {
  Work work;
  std::int64_t stage;  // in the order of the model: 0 … chunks·L − 1
  std::int64_t micro_batch;
};

std::vector<Unit> modular_units(std::int64_t rank, std::int64_t ranks, std::int64_t layers, std::int64_t micro_batches,
                                std::int64_t groups) {
  std::vector<Unit> units;
  const std::int64_t each = micro_batches / groups;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> mine;
    for (std::int64_t layer = rank; layer < layers; layer += ranks) {
      mine.push_back(layer);
    }
    for (const Work work : {Work::forward, Work::backward}) {
      for (const std::int64_t layer : mine) {
        for (std::int64_t i = 0; i < each; ++i) {
          units.push_back({work, layer, group * each + i});
        }
      }
      std::reverse(mine.begin(), mine.end());
    }
  }
  return units;
}

// 1F1B with v chunks a rank (v = 1: the plain one): `ahead` forwards first, then one forward, one backward.
std::vector<Unit> alternating_units(std::int64_t rank, std::int64_t ranks, std::int64_t chunks,
                                    std::int64_t micro_batches) {
  const std::int64_t total = micro_batches * chunks;
  const auto unit = [&](Work work, std::int64_t k) {
    std::int64_t chunk = k / ranks % chunks;
    if (work == Work::backward) {
      chunk = chunks - 1 - chunk;
    }
    const std::int64_t micro_batch = chunks == 1 ? k : k / (ranks * chunks) * ranks + k % ranks;
    return Unit{work, (chunks == 1 ? 0 : chunk) * ranks + rank, micro_batch};
  };
  const std::int64_t ahead =
      chunks == 1 ? std::min(micro_batches, ranks - 1 - rank)
                  : (micro_batches == ranks ? total : std::min(total, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks));
  std::vector<Unit> units;
  for (std::int64_t k = 0; k < ahead; ++k) {
    units.push_back(unit(Work::forward, k));
  }
  for (std::int64_t k = 0; k < total; ++k) {
    if (k + ahead < total) {
      units.push_back(unit(Work::forward, k + ahead));
    }
    units.push_back(unit(Work::backward, k));
  }
  return units;
}

std::vector<Unit> gpipe_units(std::int64_t rank, std::int64_t micro_batches) {
  std::vector<Unit> units;
  for (const Work work : {Work::forward, Work::backward}) {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      units.push_back({work, rank, i});
    }
  }
  return units;
}

}  // namespace

std::vector<TimelineOp> one_stage_timeline(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  LAMINA_CHECK(!is_pipeline(plan.order) && layers >= 3, "{} with {} layers", name_of(plan.order), layers);
  OneStage builder(plan, layers, times);
  switch (plan.zero_stage) {
    case 0:
      return builder.without_partition();
    case 3:
      return builder.partitioned();
    default:
      return builder.partly_partitioned();
  }
}

std::vector<TimelineOp> pipeline_timeline(const StepPlan& plan, std::int64_t layers, const LayerTimes& times) {
  LAMINA_CHECK(is_pipeline(plan.order) && (plan.order == Order::modular || layers % plan.pipeline == 0),
               "{} with {} layers on {} ranks", name_of(plan.order), layers, plan.pipeline);
  const std::int64_t ranks = plan.pipeline;
  const std::int64_t stages = plan.order == Order::modular       ? layers
                              : plan.order == Order::interleaved ? plan.chunks * ranks
                                                                 : ranks;
  const std::int64_t layers_each = layers / stages;
  const auto units_of = [&](std::int64_t rank) {
    switch (plan.order) {
      case Order::modular:
        return modular_units(rank, ranks, layers, plan.micro_batches, plan.groups);
      case Order::gpipe:
        return gpipe_units(rank, plan.micro_batches);
      case Order::interleaved:
        return alternating_units(rank, ranks, plan.chunks, plan.micro_batches);
      default:
        return alternating_units(rank, ranks, 1, plan.micro_batches);
    }
  };

  std::vector<TimelineOp> ops;
  // Indices by (direction, stage, micro-batch) of the compute and of the transfer that follows it.
  std::map<std::tuple<Work, std::int64_t, std::int64_t>, std::size_t> computed;
  std::map<std::tuple<Work, std::int64_t, std::int64_t>, std::size_t> sent;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (const Unit& unit : units_of(rank)) {
      const bool forward = unit.work == Work::forward;
      const double layer_s = forward ? times.forward_s : times.backward_s;
      const std::size_t at = ops.size();
      ops.push_back({.rank = rank,
                     .lane = Lane::compute,
                     .work = unit.work,
                     .layer = unit.stage * layers_each,
                     .micro_batch = unit.micro_batch,
                     .duration_s = static_cast<double>(layers_each) * layer_s,
                     .waits = {}});
      computed[{unit.work, unit.stage, unit.micro_batch}] = at;
      const bool leaves = ranks > 1 && (forward ? unit.stage + 1 < stages : unit.stage > 0);
      if (leaves) {
        sent[{unit.work, unit.stage, unit.micro_batch}] = ops.size();
        ops.push_back({.rank = rank,
                       .lane = forward ? Lane::send_forward : Lane::send_backward,
                       .work = Work::transfer,
                       .layer = unit.stage * layers_each,
                       .micro_batch = unit.micro_batch,
                       .duration_s = times.boundary_s,
                       .waits = {at}});
      }
    }
  }
  const auto& from = ranks > 1 ? sent : computed;
  for (const auto& [key, at] : computed) {
    const auto& [work, stage, micro_batch] = key;
    if (work == Work::forward && stage > 0) {
      ops[at].waits.push_back(from.at({work, stage - 1, micro_batch}));
    } else if (work == Work::backward && stage + 1 < stages) {
      ops[at].waits.push_back(from.at({work, stage + 1, micro_batch}));
    } else if (work == Work::backward) {
      ops[at].waits.push_back(computed.at({Work::forward, stage, micro_batch}));
    }
  }
  return ops;
}

}  // namespace lamina::analysis
