// A model of three parameters a unit and one number an activation, on which a whole training step costs microseconds:
// what the interpreter computes with in tests of schedules. Every micro-batch has data of its own.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "impl/schedule/interpreter.h"
#include "impl/schedule/schedule.h"

namespace lamina::toy {

// What a step leaves behind: parameters of every unit after the update, the summed loss and the gradient norm.
struct Outcome {
  bool valid = true;  // false: the schedule asked for something that cannot be done at all
  std::map<Unit, std::vector<double>> parameters;
  std::vector<double> loss;  // one per place that has the head
  std::vector<double> norm;  // one per place
};

// The same step by plain loops over all micro-batches, on one rank.
Outcome reference(const Plan& plan);

// Interprets the schedule once. `stalled` tells when it did not complete.
struct Result {
  Outcome outcome;
  bool stalled = false;
  std::string stalled_at;
};
Result run(const Schedule& schedule, std::uint64_t seed);

// Whether the outcome is the reference's up to the order of summation (relative 1e-9).
bool same(const Outcome& outcome, const Outcome& reference);

// Whether some of `seeds` interleavings stalls or computes something else.
bool goes_wrong(const Schedule& schedule, const Outcome& reference, std::uint64_t seeds);

}  // namespace lamina::toy
