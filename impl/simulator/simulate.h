// Replays a schedule on a clock instead of on machines: a cost for each op, streams in order, links not shared.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "impl/schedule/schedule.h"
#include "impl/schedule/trace.h"

namespace lamina {

// Seconds that an op of a pipeline rank takes once it and its counterparts have started. For a message both sides are
// asked with the send.
using OpCost = std::function<double(std::int32_t pipeline_rank, const Op& op)>;

struct Simulation {
  double step_time_s = 0;
  std::vector<double> compute_busy_s;  // [pipeline rank]: time in which its compute stream runs
  Trace trace;                         // rank: the pipeline rank
};

// Throws Error when the schedule stalls.
Simulation simulate(const Schedule& schedule, const OpCost& cost);

}  // namespace lamina
