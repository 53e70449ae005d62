// One training step on the sequential interpreter with the model's real numbers: what a schedule computes, without
// threads and messages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/model/weights.h"
#include "impl/schedule/schedule.h"

namespace lamina {

struct InterpretedStep {
  double loss = 0;                                 // mean over the step's counted targets
  double gradient_norm = 0;                        // before clipping
  std::map<Unit, std::vector<double>> gradients;   // reduced, whole, without padding
  std::map<Unit, std::vector<double>> parameters;  // after the update
};

// Runs step 0 in double, all data-parallel copies, in the interleaving that `interleaving` seeds. `tensors`: initial
// weights by name; nullptr initialises from `seed`. Throws Error when the schedule stalls.
InterpretedStep interpret_step(const Schedule& schedule, const OptimizerConfig& optimizer, const TokenSource& source,
                               std::int64_t seed, const std::map<std::string, NamedTensor>* tensors,
                               std::uint64_t interleaving);

}  // namespace lamina
