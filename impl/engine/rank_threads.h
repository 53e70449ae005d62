// One thread a rank.
#pragma once

#include <functional>

#include "impl/comm/threads.h"

namespace lamina {

// Calls run(rank) for ranks 0 to ranks - 1, each on a thread of its own, and returns when all have ended. Where a
// thread cannot be started the fabric is aborted with that reason, so that the ranks that did start end too. `run`
// throws nothing.
void run_on_threads(int ranks, ThreadsFabric& fabric, const std::function<void(int rank)>& run);

}  // namespace lamina
