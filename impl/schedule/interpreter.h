// The sequential interpreter: all ranks of a schedule in one thread, any op that may legally start or end taken in a
// seeded random order, on real numbers. The oracle of the verifier and the cheap engine of big equivalence sweeps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "impl/schedule/progress.h"
#include "impl/schedule/schedule.h"

namespace lamina {

// What ops do to numbers. The interpreter calls it in an order that the stream rule allows.
class Arithmetic {
 public:
  virtual ~Arithmetic() = default;
  // An op has begun: what it reads may be looked at from now on.
  virtual void begin(std::int32_t /*place*/, const Op& /*op*/) {}
  // A compute, update or copy op ends: what it writes is there from now on.
  virtual void compute(std::int32_t place, const Op& op) = 0;
  // A message ends at the receiver. `send` began at `source` before this.
  virtual void deliver(std::int32_t source, const Op& send, std::int32_t destination, const Op& receive) = 0;
  // A collective ends at `place`; every member has begun. `members` are in the order in which they began.
  virtual void collect(std::int32_t place, const Op& op, std::span<const Progress::Member> members) = 0;
};

struct Interpretation {
  bool completed = false;
  std::string stalled_at;  // what every rank hangs on, when it did not complete
};

Interpretation interpret(const Schedule& schedule, std::int32_t data_copies, std::uint64_t seed,
                         Arithmetic& arithmetic);

}  // namespace lamina
