#include "impl/comm/look_pace.h"

#include <algorithm>
#include <utility>

namespace lamina {

void LookPace::ended(Time now, std::int64_t bytes, std::int64_t of_bytes) {
  const double gap_s = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  const bool much = of_bytes >= kMuchBytes;
  bytes_ = much ? bytes_ / 2 + static_cast<double>(bytes) : 0;
  time_s_ = much ? time_s_ / 2 + gap_s : 0;
}

double LookPace::next_s(Time now, std::int64_t bytes) const {
  if (std::chrono::duration<double>(now - last_).count() > kQuiet_s) {
    return look_every_s_ * kQuietFactor;
  }
  if (bytes_ <= 0) {
    return look_every_s_;
  }
  const auto between = static_cast<double>(std::min(bytes / kLooksForAll, kBytesBetweenLooks));
  return std::max(look_every_s_, std::min(kLongest_s, between * time_s_ / bytes_));
}

}  // namespace lamina
