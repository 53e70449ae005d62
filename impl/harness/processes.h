// An experiment whose ranks are processes: what they agree on before it, and who does what.
#pragma once

#include <cstdio>
#include <functional>

#include "impl/harness/backend.h"
#include "impl/harness/runner.h"

namespace lamina {

// A launcher started this process together with others, or the scenario asks for processes.
bool wants_processes(const Scenario& scenario);
bool launched_with_others();

// Starts MPI and takes this process's part. Build, scenario and plans are compared over all ranks first; rank 0 alone
// speaks, keeps the result and returns the runs' exit code, the other ranks return 0. What all ranks refuse alike is one
// line of rank 0 and exit code 2 everywhere. A rank that fails ends all of them.
// `read` reads the scenario (throws UsageError); without options.out the scenario's name chooses the folder.
int run_over_processes(const std::function<Scenario()>& read, RunOptions options, const Backend& backend,
                       std::FILE* output, std::FILE* errors);

}  // namespace lamina
