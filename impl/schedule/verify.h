// Proves a schedule before anyone runs it.
#pragma once

#include <optional>
#include <string>

#include "impl/schedule/schedule.h"

namespace lamina {

// The first thing found wrong, in one line that names rank, op and reason; nothing when the schedule is right in
// every interleaving that the stream rule and rendezvous messages allow. How: see impl/schedule/README.md.
std::optional<std::string> find_fault(const Schedule& schedule);

// Throws Error with that line.
void verify(const Schedule& schedule);

}  // namespace lamina
