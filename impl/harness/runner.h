// Runs an experiment: calibrates its link, trains each run, measures, and keeps the result file whole all the while.
#pragma once

#include <string>
#include <vector>

#include "impl/harness/backend.h"
#include "impl/harness/prepare.h"
#include "impl/harness/report.h"

namespace lamina {

// What a command ends with.
enum ExitCode : int {
  kFine = 0,
  kNotMet = 1,         // an expectation, or a regression
  kUsage = 2,          // bad usage or a bad scenario: nothing was started
  kFailed = 3,         // a run failed, or a result could not be kept
  kNotComparable = 4,  // of comparisons
};

struct RunOptions {
  std::string out;  // folder of result.json and trace.json
  bool force = false;
  bool trace = false;
  std::vector<std::string> arguments;  // the command line, for the result
};

// Looks at everything that will be written before anything is, and makes the folders. Throws UsageError when something
// is in the way.
void make_room(const Experiment& experiment, const RunOptions& options);

// The link that a setting of the experiment asks for: given, or found by a calibration on this machine.
ResolvedLink resolve_link(const Experiment& experiment, std::size_t setting, const Backend& backend,
                          Reporter& reporter);

// Throws UsageError as make_room(), Error when the result cannot be kept.
// A run that fails is marked so, with its reason, and does not stop the others, where ranks are threads. While a run
// is under way the result says that it failed: so it reads when the program is killed.
// With a transport this process is rank 0 of it, and the others call follow_experiment(); a run that fails then ends
// the job.
ExitCode run_experiment(const Experiment& experiment, const Backend& backend, const RunOptions& options,
                        Reporter& reporter, MpiTransport* transport = nullptr);

// The part of another rank: runs what needs it, in the same order. Throws Error when a run failed.
void follow_experiment(const Experiment& experiment, const Backend& backend, MpiTransport& transport);

}  // namespace lamina
