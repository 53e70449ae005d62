#include "impl/comm/look_pace.h"

#include <algorithm>
#include <utility>

namespace lamina {

void LookPace::ended(Time now, std::int64_t bytes) {
  const double gap_s = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  bytes_ = bytes_ / 2 + static_cast<double>(bytes);
  time_s_ = time_s_ / 2 + gap_s;
}

double LookPace::next_s(Time now, std::int64_t bytes) const {
  if (std::chrono::duration<double>(now - last_).count() > kQuiet_s) {
    return look_every_s_ * kQuietFactor;
  }
  if (bytes < kMuchBytes || bytes_ <= 0) {
    return look_every_s_;
  }
  return std::max(look_every_s_, std::min(kLongest_s, static_cast<double>(kBytesBetweenLooks) * time_s_ / bytes_));
}

}  // namespace lamina
