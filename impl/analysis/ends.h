// What a step of a real model costs beside its layers: the head's product with the vocabulary, the embedding's
// reduction, the optimizer. The forms and the paper's figures leave these out (README); predictions of real steps and
// simulated runs count them.
#pragma once

#include "impl/analysis/forms.h"

namespace lamina::analysis {

// The head of one micro-batch, forward and backward together, never recomputed: 2 b s d V FLOPs forward and twice that
// backward, over A tensor ranks: 6 b s d V/(A F).
double head_time(const ModelShape& model, double micro_batch, double tensor, const Rates& rates);

// Bytes that an update moves through memory for each parameter: it reads the parameter and its gradient and writes the
// parameter, and reads and writes each moment; `width` bytes each. 28 for Adam in fp32.
double update_bytes_per_parameter(double moments, double width);

// What the ends add to step_time(). They add up:
//   head        m times head_time: the last rank computes it between the last layer's forward and backward, and every
//               other rank waits for it. Exact in every order with equal stages and without transfers.
//   vocabulary  the embedding's gradient is complete last, so that its reduction (ZeRO-0: an all-reduce of V d/A
//               elements; from ZeRO-1 on a reduce-scatter and a gather) sticks out.
//   update      the parameters of the rank's layers and one vocabulary matrix, over D from ZeRO-1 on, at the rate of
//               the device's memory.
struct EndTimes {
  double head_s = 0;
  double vocabulary_s = 0;
  double update_s = 0;
  double total_s() const { return head_s + vocabulary_s + update_s; }
};
EndTimes end_times(const StepPlan& plan, const ModelShape& model, const Rates& rates, const WireBytes& wire,
                   double memory_bytes_per_s);

}  // namespace lamina::analysis
