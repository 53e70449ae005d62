// What a step should send and what a rank should hold, from closed forms that do not look at the schedule
// (impl/analysis/README.md derives them). Printed beside what was counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "impl/base/real.h"
#include "impl/model/optimizer.h"
#include "impl/plan/plan.h"

namespace lamina {

struct UnitTraffic {
  std::int64_t reduce = 0;
  std::int64_t gather = 0;
  bool operator==(const UnitTraffic&) const = default;
};

// Bytes sent by a rank in one step over its data-parallel group. Control messages are outside the forms.
struct TrafficPrediction {
  UnitTraffic embedding, layers, head;
  UnitTraffic total() const {
    return {embedding.reduce + layers.reduce + head.reduce, embedding.gather + layers.gather + head.gather};
  }
};

// Bytes of a rank that the forms cover: state, checkpoints at unit boundaries and buffers of gathered parameters and of
// gradients under reduction (the resident layers, two layers' gradients, and both of the embedding and the head). What
// a layer in flight needs (working set) and the transport's own buffers are counted but not predicted.
struct MemoryPrediction {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t checkpoints = 0;
  std::int64_t gathered = 0;
  std::int64_t state() const { return parameters + gradients + optimizer; }
};

struct Prediction {
  std::optional<TrafficPrediction> traffic;
  std::optional<MemoryPrediction> memory;
  std::string reason;  // why there is none; empty where there are both
};

// Covers one pipeline and one tensor rank. All data-parallel ranks are alike.
Prediction predict(const Plan& plan, const Precision& precision, OptimizerConfig::Kind optimizer);

}  // namespace lamina
