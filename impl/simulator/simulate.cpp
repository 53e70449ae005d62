#include "impl/simulator/simulate.h"

#include <algorithm>
#include <array>

#include "impl/base/error.h"
#include "impl/schedule/progress.h"

namespace lamina {
namespace {

class Clockwork {
 public:
  Clockwork(const Schedule& schedule, const OpCost& cost) : cost_(cost), progress_(schedule, 1) {
    for (const Program& program : schedule.programs) {
      start_.emplace_back(program.ops.size(), 0.0);
      end_.emplace_back(program.ops.size(), 0.0);
      stream_free_.emplace_back().fill(0.0);
    }
    result_.compute_busy_s.assign(schedule.programs.size(), 0.0);
  }

  // Times do not depend on the sequence in which streams are looked at: no resource is shared.
  Simulation run() {
    const bool completes = run_greedily(
        progress_, [this](std::int32_t rank, StreamKind stream) { start(rank, stream); },
        [this](std::int32_t rank, StreamKind stream) { finish(rank, stream); });
    LAMINA_CHECK(completes, "the schedule stalls");
    return std::move(result_);
  }

 private:
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

  void start(std::int32_t rank, StreamKind stream) {
    const Op& op = *progress_.head(rank, stream);
    double start = stream_free_[at(rank)][static_cast<std::size_t>(stream)];
    for (const std::int32_t wait : op.waits) {
      start = std::max(start, end_[at(rank)][at(wait)]);
    }
    start_[at(rank)][at(op.id)] = start;
    progress_.start(rank, stream);
  }

  void finish(std::int32_t rank, StreamKind stream) {
    const Op& op = *progress_.head(rank, stream);
    double start = start_[at(rank)][at(op.id)];
    const Op* costed = &op;
    std::int32_t costed_rank = rank;
    if (op.kind == OpKind::send || op.kind == OpKind::receive || is_collective(op.kind)) {
      for (const auto& [place, other] : progress_.meeting_of(rank, op)) {
        start = std::max(start, start_[at(place)][at(other->id)]);
        if (other->kind == OpKind::send) {
          costed = other;
          costed_rank = place;
        }
      }
    }
    const double end = start + cost_(costed_rank, *costed);
    end_[at(rank)][at(op.id)] = end;
    stream_free_[at(rank)][static_cast<std::size_t>(stream)] = end;
    result_.step_time_s = std::max(result_.step_time_s, end);
    if (stream == StreamKind::compute) {
      result_.compute_busy_s[at(rank)] += end - start;
    }
    result_.trace.push_back({.op = op.id, .rank = rank, .step = 0, .start_s = start, .end_s = end});
    progress_.finish(rank, stream);
  }

  const OpCost& cost_;
  Progress progress_;
  std::vector<std::vector<double>> start_, end_;
  std::vector<std::array<double, kStreamKinds>> stream_free_;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const OpCost& cost) { return Clockwork(schedule, cost).run(); }

}  // namespace lamina
