// Runs a schedule for real: compute on the CPU, messages through a transport, every rank a set of streams.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "impl/base/real.h"
#include "impl/comm/threads.h"
#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/schedule/schedule.h"
#include "impl/schedule/trace.h"

namespace lamina {

// Whole tensors under their nanoGPT names, written after step `step` (counted from 0, warm-up included).
struct DumpConfig {
  std::int64_t step = 0;
  std::string gradients;  // empty: not written. After clipping: what the optimizer used times nothing else.
  std::string weights;    // empty: not written
};

// A disturbance put in on purpose, to see what it does: to test the harness, and to show users what one slow or
// failing rank looks like.
struct Disturbance {
  enum class Kind : std::uint8_t { sleep, fail } kind = Kind::sleep;
  std::int64_t rank = 0;
  std::int64_t step = -1;  // -1: every step
  double sleep_s = 0;
};

struct TrainRequest {
  Schedule schedule;  // verified; its plan holds model, batch and parallel sizes
  RealType compute = RealType::fp32;  // fp32 or fp64
  OptimizerConfig optimizer;
  DataConfig data;
  std::int64_t seed = 1;
  std::string initial_weights;  // safetensors; empty: initialised from the seed
  std::optional<DumpConfig> dump;
  std::int64_t warmup_steps = 0;
  std::int64_t measured_steps = 1;
  EmulatedLink link;
  int compute_threads_per_rank = 1;
  bool communication = true;  // false: collectives and messages move nothing (to measure compute alone)
  bool trace = false;
  std::vector<Disturbance> disturbances;
};

// Bytes a rank sent in one step, by kind and by what it was sent for.
struct StepTraffic {
  // [TrafficKind][UnitKind], as in TrafficLedger
  std::array<std::array<std::int64_t, 3>, kTrafficKinds> bytes{};
  bool operator==(const StepTraffic&) const = default;
};

// Bytes a rank holds by kind; all of it is allocated before the first step.
struct RankMemory {
  std::int64_t parameters = 0;    // resident whole parameters or shards
  std::int64_t gradients = 0;     // whole gradients or shards
  std::int64_t optimizer = 0;
  std::int64_t checkpoints = 0;   // activations at unit boundaries
  std::int64_t working_set = 0;   // saved for backward, activation gradients, head, scratch
  std::int64_t gathered = 0;      // buffers of gathered parameters and of gradients under reduction
  std::int64_t transport = 0;
  std::int64_t total() const {
    return parameters + gradients + optimizer + checkpoints + working_set + gathered + transport;
  }
};

struct StepRecord {
  std::vector<double> rank_time_s;     // wall time of the step on each rank
  std::vector<double> rank_exposed_s;  // of that, time in which the rank's compute stream ran nothing
  double loss = 0;                     // mean over the step's counted targets, before the update
  double gradient_norm = 0;            // before clipping
  std::int64_t counted_targets = 0;
  std::vector<StepTraffic> rank_traffic;
};

struct TrainOutcome {
  std::vector<StepRecord> steps;  // warm-up first
  std::vector<RankMemory> rank_memory;
  std::vector<std::int64_t> rank_resident_set_bytes;  // one entry: ranks share the process; growth over the run
  std::int64_t layers_built = 0;
  std::int64_t parameters_built = 0;
  Trace trace;
};

// Called after every step on one thread of the caller's process.
using StepProgress = std::function<void(std::int64_t step, const StepRecord&)>;

// Runs all ranks of the schedule as threads of this process. Throws Error with the first cause when a rank fails;
// every thread has ended by then.
TrainOutcome train(const TrainRequest& request, const StepProgress& progress);

}  // namespace lamina
