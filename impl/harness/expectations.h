// Whether what a scenario expects came out.
#pragma once

#include <string>

#include "impl/base/strict_json.h"
#include "impl/harness/scenario.h"

namespace lamina {

// A list with an entry for each expectation and point of the sweep: the expectation as written, `measured` (the ratio
// of medians, or of maxima over ranks; or the largest relative difference of a series over its steps), `met`, and a
// `reason` where there is nothing to measure (which is then not met). Reads the runs of a result and nothing else.
Json evaluate_expectations(const Scenario& scenario, const Json& runs);

// "step_time_s of depth-first over layered: 1.41 (at least 1.3): met"
std::string describe_expectation(const Json& entry);

}  // namespace lamina
