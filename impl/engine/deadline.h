// How long a rank waits for another before it takes it for lost.
#pragma once

#include <chrono>

#include "impl/engine/train.h"

namespace lamina {

// No wait inside a step may last longer than this: 20 times what the step should take at a pace that any machine keeps
// (its arithmetic, its bytes over the emulated link, the latency of its messages one after the other, the sleeps asked
// for), and at least 10 s.
std::chrono::duration<double> longest_wait(const TrainRequest& request);

}  // namespace lamina
