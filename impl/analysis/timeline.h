// A plain timeline: operations in issue order on the streams of some ranks, each with a duration and the operations it
// waits for. An operation starts when its stream reaches it and its waits are done. Links are not shared. It draws the
// methods side by side and checks the closed forms; it knows nothing of memory or of real schedules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/analysis/forms.h"

namespace lamina::analysis {

enum class Lane : std::uint8_t { compute, data, send_forward, send_backward };
std::string_view name_of(Lane lane);

enum class Work : std::uint8_t { forward, backward, gather, reduce, all_reduce, transfer };
std::string_view name_of(Work work);

struct TimelineOp {
  std::int64_t rank = 0;
  Lane lane = Lane::compute;
  Work work = Work::forward;
  std::int64_t layer = 0;        // the first one where several are computed as one
  std::int64_t micro_batch = 0;  // the group's number for gathers and reductions
  double duration_s = 0;
  std::vector<std::size_t> waits;  // indices of operations
  double start_s = 0;              // set by run_timeline
  double end_s = 0;
};

// Runs the operations and returns the time of the last end. Throws Error when they cannot all run.
double run_timeline(std::vector<TimelineOp>& ops);

// One stage: depth-first, layered or hybrid, any ZeRO stage, with two parameter slots, two gradient slots and resident
// layers reused, one FIFO stream for gathers and reductions. Needs at least three layers.
std::vector<TimelineOp> one_stage_timeline(const StepPlan& plan, std::int64_t layers, const LayerTimes& times);

// A pipeline without data parallelism: gpipe, 1f1b, interleaved (m a multiple of L) or modular, transfers of each
// direction on a stream of their own.
std::vector<TimelineOp> pipeline_timeline(const StepPlan& plan, std::int64_t layers, const LayerTimes& times);

}  // namespace lamina::analysis
