// What one rank knows at the end of a run, and how that of all ranks becomes the run's outcome.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "impl/comm/network_counters.h"
#include "impl/engine/train.h"

namespace lamina {

// What a rank knows of a step it has finished. Loss and count are known where the head is, the norm everywhere.
struct RankStep {
  double time_s = 0;
  double exposed_s = 0;
  StepTraffic traffic;
  bool has_loss = false;
  double loss_sum = 0;
  double counted_targets = 0;
  double gradient_norm = 0;
  bool skipped = false;   // an overflow of the scaled gradient: nothing was updated
  double loss_scale = 1;  // that the step ran with
};

struct RankOutcome {
  std::vector<RankStep> steps;
  RankMemory memory;
  std::vector<Unit> units;  // that it updates
  Trace trace;
  CollectiveBackend collectives = CollectiveBackend::ring;  // that its data-parallel group was made with
  std::int64_t resident_set_growth_bytes = 0;               // of its process
  std::vector<PortBytes> wire;                              // what the interfaces that it sees counted during the steps
};

// One step as these ranks saw it: all of them, or those that are known so far.
StepRecord combine(std::span<const RankStep> ranks);

// All ranks' outcomes, by rank. Resident-set growth and wire are those of the processes: one for all ranks, or one
// each.
enum class RanksAre : std::uint8_t { threads, processes };
TrainOutcome assemble(const Plan& plan, std::vector<RankOutcome> ranks, RanksAre ranks_are);

// As bytes, to be sent between processes of one build on machines of one kind.
std::string pack(const RankOutcome& outcome);
RankOutcome unpack(const std::string& bytes);  // throws Error when they are not what pack() made

}  // namespace lamina
