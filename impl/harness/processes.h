// Work whose ranks are processes: what they agree on before it, and who does what.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "impl/harness/backend.h"
#include "impl/harness/runner.h"

namespace lamina {

// A launcher started this process together with others, or the scenario asks for processes.
bool wants_processes(const Scenario& scenario);
bool launched_with_others();

// Starts MPI and does this process's part of `work`, whose exit code it returns. What all ranks refuse alike (by the
// agreements below) is one line of rank 0 and exit code 2 everywhere. A rank that fails ends all of them. Throws
// UsageError in a build without MPI.
int over_processes(const Backend& backend, std::FILE* errors, const std::function<int(MpiTransport&)>& work);

// Agreements between the ranks of such work; each is called by all of them and refuses on all of them.
//
// Does `work` on every rank and compares what came out: its hash, or the words of the UsageError in which it was
// refused. A rank whose own refusal the others do not share says it, before rank 0 says who differs.
void agree(MpiTransport& transport, const Backend& backend, std::string_view name, std::FILE* errors,
           const std::function<std::string()>& work);
// Rank 0 alone writes: the UsageError of its check stops everybody.
void agree_on_first(MpiTransport& transport, const std::function<void()>& check);
// Where everybody is, known to all.
Placement agree_on_placement(MpiTransport& transport);

// An experiment over processes. Build, scenario and plans are compared over all ranks first; rank 0 alone speaks, keeps
// the result and returns the runs' exit code, the other ranks return 0. `read` reads the scenario (throws UsageError);
// without options.out the scenario's name chooses the folder.
int run_over_processes(const std::function<Scenario()>& read, RunOptions options, const Backend& backend,
                       std::FILE* output, std::FILE* errors);

}  // namespace lamina
