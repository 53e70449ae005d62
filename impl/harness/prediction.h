// What a step should send and what a rank should hold, from closed forms that do not look at the schedule
// (impl/analysis/README.md derives them). Printed beside what was counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/base/real.h"
#include "impl/model/optimizer.h"
#include "impl/schedule/build.h"

namespace lamina {

struct UnitTraffic {
  std::int64_t reduce = 0;
  std::int64_t gather = 0;
  bool operator==(const UnitTraffic&) const = default;
};

// Bytes sent by a rank in one step, over its data-parallel group and to other pipeline ranks. Control messages are
// outside the forms.
struct TrafficPrediction {
  UnitTraffic embedding, layers, head;
  std::int64_t pipeline_send = 0;
  UnitTraffic total() const {
    return {embedding.reduce + layers.reduce + head.reduce, embedding.gather + layers.gather + head.gather};
  }
};

// Bytes of a rank that the forms cover: state, checkpoints at unit boundaries and buffers of gathered parameters and of
// gradients under reduction (the resident layers, two layers' gradients, and both of the embedding and the head). What
// a layer in flight needs (working set) and the transport's own buffers are counted but not predicted. A pipeline rank
// also holds up to three activations on their way from or to its neighbours, whatever the micro-batches; interleaved
// with chunks of unequal length, which the form counts at their mean, one more.
struct MemoryPrediction {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t checkpoints = 0;
  std::int64_t gathered = 0;
  std::int64_t state() const { return parameters + gradients + optimizer; }
};

// By pipeline rank: all data-parallel ranks of a stage are alike.
struct Prediction {
  std::vector<TrafficPrediction> traffic;  // empty where no form covers the plan
  std::vector<MemoryPrediction> memory;    // the same
  std::string reason;                      // why one is empty; empty where none is
};

// Covers one tensor rank.
Prediction predict(const Method& method, const Plan& plan, const Precision& precision, OptimizerConfig::Kind optimizer);

}  // namespace lamina
