// A scenario made ready: every plan resolved, every schedule proved, every file looked into. What is wrong with a
// scenario is found here, before anything is allocated or started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/harness/backend.h"
#include "impl/harness/context.h"
#include "impl/harness/prediction.h"
#include "impl/harness/scenario.h"

namespace lamina {

struct PreparedRun {
  std::string name;         // full: with the swept values
  std::size_t setting = 0;  // index into the scenario's settings
  RunRequest request;
  Schedule schedule;  // verified; holds the plan
  Prediction prediction;
  ComputeShare share;      // oversubscribed: its times say little
  std::string not_started;  // why it is skipped; empty: it is not
  const Plan& plan() const { return schedule.plan; }
  std::int64_t ranks() const { return schedule.plan.parallel.ranks(); }
};

struct Experiment {
  Scenario scenario;
  Placement placement;
  std::string scenario_sha256;
  std::vector<std::string> data_sha256;  // by setting
  std::vector<PreparedRun> runs;         // setting by setting
  const Setting& setting_of(const PreparedRun& run) const { return scenario.settings[run.setting]; }
};

// The run by which a setting's link is calibrated: its first with data-parallel ranks and no pipeline, which can be run
// with nothing sent. Null where there is none.
const PreparedRun* calibration_run(const Experiment& experiment, std::size_t setting);

// Throws UsageError with one line naming file and key or run.
Experiment prepare(const Scenario& scenario, const Backend& backend, const Placement& placement = {});

// The training that a run asks for, over this link.
TrainRequest train_request(const Experiment& experiment, const PreparedRun& run, const EmulatedLink& link);

// For people: what a scenario resolves to (`lamina check`), and which combinations work (`lamina check --support`),
// found by trying each on a small model.
Json describe_experiment(const Experiment& experiment);
std::string support_table(const Backend& backend);

}  // namespace lamina
