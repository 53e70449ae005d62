// A schedule drawn for a terminal.
#pragma once

#include <string>

#include "impl/schedule/schedule.h"

namespace lamina {

// One line per rank and used stream, time from left to right over at most `columns` columns, from a simulation in
// which a forward takes 1, a backward 2 (3 with full recomputation), a layer's collective as much as it likes between:
// communication has the cost 1 a layer, so that what overlaps what can be seen. A legend follows.
std::string to_lanes(const Schedule& schedule, int columns);

}  // namespace lamina
