// How long a thread that progresses messages may sleep between its looks at them.
#pragma once

#include <chrono>
#include <cstdint>

namespace lamina {

// The shorter, the sooner an end is seen; but each look wakes a thread and takes the compute its core. So: every
// `look_every_s` as a rule; less often once nothing has ended for long; and while much is under way, so that the link
// has work whenever something ends, as seldom as a small share of it takes at the rate of late: so small that looks
// which are themselves what ends wait for do not become rarer and rarer, and that the system's buffers hold it between
// looks.
class LookPace {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr double kLongest_s = 1e-3;
  static constexpr std::int64_t kLooksForAll = 24;
  static constexpr std::int64_t kBytesBetweenLooks = 192 << 10;
  static constexpr std::int64_t kMuchBytes = std::int64_t{1} << 20;
  static constexpr double kQuiet_s = 0.05;
  static constexpr double kQuietFactor = 2.5;

  explicit LookPace(double look_every_s) : look_every_s_(look_every_s) {}
  void begins(Time now) { last_ = now; }                            // something is under way, after a time with nothing
  void ended(Time now, std::int64_t bytes, std::int64_t of_bytes);  // seen by one look, with so many under way before
  double next_s(Time now, std::int64_t bytes) const;                // with so many under way

 private:
  double look_every_s_;
  Time last_;
  // Sums over looks that saw something end while much was under way, each counting half of the next one: else nothing
  // tells how fast the link is.
  double bytes_ = 0;
  double time_s_ = 0;
};

}  // namespace lamina
