// A run on a cluster that is described instead of at hand: the same schedule, a cost for each op, the same record.
#pragma once

#include <string>

#include "impl/engine/train.h"
#include "impl/plan/cluster.h"
#include "impl/simulator/simulate.h"

namespace lamina {

// What an op of the plan's schedule takes on the cluster.
//   layer forward    (24 d² + 4 s d) b s FLOPs at the device's peak times its efficiency at this hidden size;
//   layer backward   twice that and what is recomputed (impl/analysis/forms.h)
//   head             6 d V b s FLOPs, forward and backward together, at the same rate
//   embedding, update  bytes over the memory's bandwidth: three passes over the activations and over the
//                    parameters and two more for each of the optimizer's moments
//   message          bytes/β + latency
//   gather, reduce   a ring: (D − 1)/D · bytes/β + (D − 1) latencies; an all-reduce twice that
//   control          8 bytes in each of the ring's D − 1 (norm: ranks − 1) rounds
// β is the link's bandwidth times its efficiency: the node's where all ranks of the group or message share a node
// (ranks fill nodes in order), else the network's. Throws UsageError when the device has no rate for the precision.
OpCost cluster_costs(const Cluster& cluster, const Plan& plan, const Precision& precision,
                     OptimizerConfig::Kind optimizer);

// Bytes by kind from the schedule's slots. The working set of a layer is the form's upper bound; the transport's
// buffers are not known.
RankMemory memory_of_slots(const Schedule& schedule, std::int64_t pipeline_rank, const Precision& precision,
                           OptimizerConfig::Kind optimizer);

// Bytes a rank sends in a step, from the schedule's ops.
StepTraffic traffic_of_ops(const Schedule& schedule, std::int64_t pipeline_rank, const Precision& precision);

// One step. Loss and gradient norm are not a number: nothing is trained.
TrainOutcome simulate_run(const TrainRequest& request, const Cluster& cluster);

}  // namespace lamina
