// What an executor did and when: the same record from train, replay and simulate.
#pragma once

#include <cstdint>
#include <vector>

namespace lamina {

struct TraceEvent {
  std::int32_t op = 0;    // id in the program of the rank's pipeline stage
  std::int32_t rank = 0;  // global rank
  std::int32_t step = 0;  // counted from 0, warm-up included
  double start_s = 0;     // since the run's first step began
  double end_s = 0;
};

using Trace = std::vector<TraceEvent>;

}  // namespace lamina
