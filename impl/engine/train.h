// Runs a schedule for real: compute on the CPU, messages through a transport, every rank a set of streams.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "impl/base/real.h"
#include "impl/comm/communicator.h"
#include "impl/comm/network_counters.h"
#include "impl/comm/threads.h"
#include "impl/engine/rank_state.h"
#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/schedule/schedule.h"
#include "impl/schedule/trace.h"

namespace lamina {

// Whole tensors under their nanoGPT names, written after step `step` (counted from 0, warm-up included).
struct DumpConfig {
  std::int64_t step = 0;
  std::string gradients;  // empty: not written. Reduced over all ranks, before clipping, without the loss scale.
  std::string weights;    // empty: not written. After the step's update; the masters where weights have 16 bits.
};

// A disturbance put in on purpose, to see what it does: to test the harness, and to show users what one slow or
// failing rank looks like. It happens on the compute stream, before the step's first compute op, and the rank does it
// to itself: it sleeps, throws, asks for memory that there is not, or its process exits (with code 0, as if all were
// well), is killed or stopped. Where ranks are threads of one process, the last three take all of them.
struct Disturbance {
  enum class Kind : std::uint8_t { sleep, fail, out_of_memory, exit, kill, stop } kind = Kind::sleep;
  std::int64_t rank = 0;
  std::int64_t step = -1;  // -1: every step
  double sleep_s = 0;
};

// A trace's size must not grow with the length of a run.
inline constexpr std::int64_t kTracedSteps = 3;

struct TrainRequest {
  Schedule schedule;  // verified; its plan holds model, batch and parallel sizes
  Precision precision;
  OptimizerConfig optimizer;
  DataConfig data;
  std::int64_t seed = 1;
  std::string initial_weights;  // safetensors; empty: initialised from the seed
  std::optional<DumpConfig> dump;
  std::int64_t warmup_steps = 0;
  std::int64_t measured_steps = 1;
  EmulatedLink link;
  CollectiveBackend collectives = CollectiveBackend::ring;  // of gradients and parameters
  int compute_threads_per_rank = 1;
  bool communication = true;  // false: collectives move nothing (to measure compute alone; without pipeline and ZeRO)
  bool trace = false;         // of the last traced_steps steps
  std::int64_t traced_steps = kTracedSteps;
  std::vector<Disturbance> disturbances;
};

// Bytes a rank sent in one step, by kind and by what they were sent for: [TrafficKind][UnitKind].
struct StepTraffic {
  std::array<std::array<std::int64_t, 3>, kTrafficKinds> bytes{};
  bool operator==(const StepTraffic&) const = default;
};

struct StepRecord {
  std::vector<double> rank_time_s;  // wall time of the step on each rank
  // Of that, time in which the rank neither computed nor loaded its samples: it waited for others. 0 by definition on
  // one rank.
  std::vector<double> rank_exposed_s;
  bool has_loss = true;      // loss and count are known: always, but for the progress of some processes
  double loss = 0;           // mean over the step's counted targets, before the update; NaN without any
  double gradient_norm = 0;  // before clipping
  std::int64_t counted_targets = 0;
  bool skipped = false;   // nothing was updated: scaled gradients overflowed
  double loss_scale = 1;  // of the step; 1 where the loss is not scaled
  std::vector<StepTraffic> rank_traffic;
};

struct TrainOutcome {
  std::vector<StepRecord> steps;  // warm-up first
  std::vector<RankMemory> rank_memory;
  std::vector<std::int64_t> resident_set_growth_bytes;  // of each process, from before allocation to the end
  std::int64_t layers_built = 0;
  std::int64_t parameters_built = 0;
  Trace trace;
  CollectiveBackend collectives = CollectiveBackend::ring;  // that summed the gradients and gathered the parameters
  // Of each rank, where ranks are processes: what the network interfaces that it sees counted during all steps.
  std::vector<std::vector<PortBytes>> rank_wire;
};

// Called after every step by the rank that finishes it last, one call at a time.
using StepProgress = std::function<void(std::int64_t step, const StepRecord&)>;

// Runs all ranks of the schedule as threads of this process. Throws Error with the first cause when a rank fails, and
// UsageError when data or weights are not what the request says; every thread has ended by then. A run whose measured
// steps were all skipped has failed.
TrainOutcome train(const TrainRequest& request, const StepProgress& progress);

// Runs this rank of the schedule, whose ranks are the transport's first ones; each of them calls it. The link of the
// request is not used. Rank 0 returns the outcome of all, the others an empty one. `progress` is called on rank 0 with
// what it alone knows of a step. Throws Error when this rank or another one fails (the transport was aborted then), or
// on rank 0 when all measured steps were skipped (it was not).
TrainOutcome train_on(const TrainRequest& request, Transport& transport, const StepProgress& progress);

}  // namespace lamina
