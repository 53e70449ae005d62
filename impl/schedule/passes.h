// From a compute order to a schedule, one pass after another. A pass serves every method.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "impl/schedule/build.h"
#include "impl/schedule/schedule.h"

namespace lamina {

// A compute op before slots and communication: the embedding and the head have their place now.
struct ComputeOp {
  OpKind kind = OpKind::forward;
  Unit unit;
  std::int32_t micro_batch = 0;
  std::int32_t group = 0;
};

// Pass 1. Puts the embedding before, and the head behind, each run of the first and the last layer (a run: consecutive
// ops on one layer in one direction), so that they follow the order of the layer they stand next to: all micro-batches
// at once where the order is layered, one at a time where it is depth-first.
std::vector<std::vector<ComputeOp>> place_embedding_and_head(const ComputeOrder& order, std::int64_t layers);

// Pass 2. When each compute op would start and end, in ticks, if a forward took 1024, a backward 2048 (3072 with full
// recomputation), embedding and head 1, and messages no time. It fixes the order in which later passes see ops of all
// ranks, so that what they insert cannot deadlock. Throws UsageError when the order itself deadlocks, naming rank and
// op.
struct Timing {
  std::int64_t start = 0;
  std::int64_t end = 0;
};
std::vector<std::vector<Timing>> unit_timeline(const std::vector<std::vector<ComputeOp>>& order,
                                               const std::vector<std::int64_t>& owner, bool full_recompute);

// Pass 3, for one rank. Where gathers and reductions stand between compute ops, by ZeRO stage; see
// impl/schedule/README.md. Positions are indices of the rank's compute ops.
struct PartitionOp {
  OpKind kind = OpKind::gather;  // gather, reduce, all_reduce
  Unit unit;
  std::int32_t buffer = -1;      // which of the layers' shared buffers; -1: the unit's own
  bool accumulate = false;       // reduce: adds to the shard
  std::int32_t not_before = -1;  // gather: waits for this compute op's end whatever its buffer (prefetch distance)
};
struct PartitionPlan {
  std::vector<std::vector<PartitionOp>> before;  // [compute op]: issued before it in the rank's order
  std::vector<std::vector<PartitionOp>> after;   // [compute op]: issued after it
  std::vector<std::int32_t> parameter_buffer;    // [compute op]: shared buffer it reads its parameters from, or -1
  std::vector<std::int32_t> gradient_buffer;     // [compute op]: shared buffer it adds its gradient to, or -1
  std::vector<bool> accumulate;                  // [compute op]: adds to the gradient instead of replacing it
  std::int32_t parameter_buffers = 0;
  std::int32_t gradient_buffers = 0;
};
PartitionPlan partition(const std::vector<ComputeOp>& order, const Plan& plan);

// Pass 4. Transfers, control and update ops, then slots and waits.
Schedule assemble(const Plan& plan, const std::vector<std::int64_t>& owner,
                  const std::vector<std::vector<ComputeOp>>& order, const std::vector<std::vector<Timing>>& timeline,
                  const std::vector<PartitionPlan>& partitions);

}  // namespace lamina
