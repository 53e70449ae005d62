// A plan's step time by another witness than the forms, as reports show it. Who makes one builds schedules and runs
// them, which is not for this library: impl/harness/confirm.h does.
#pragma once

#include <functional>
#include <string>

#include "impl/analysis/cost.h"

namespace lamina::analysis {

struct Confirmation {
  std::optional<double> step_s;  // nothing: not simulated
  std::int64_t ops = 0;          // of the simulated schedule, all pipeline ranks together
  bool verified = false;         // the schedule was proved before it was simulated
  std::string reason;            // why it was not simulated, or simulated but not verified; empty when both were done
};
using Confirm = std::function<Confirmation(const PlanCost& cost, const ModelShape& model)>;

// The training time that follows, in seconds and in days: as many steps as the form has, each as long as simulated.
// Nothing where there is none.
std::optional<double> confirmed_training_s(const Confirmation& confirmation, const PlanCost& cost);
std::optional<double> confirmed_training_days(const Confirmation& confirmation, const PlanCost& cost);
// Simulated step time over the form's.
std::optional<double> over_form(const Confirmation& confirmation, const PlanCost& cost);

// {"step_time_s", "training_days", "over_form", "ops", "verified", "reason"}; null where there is none.
nlohmann::ordered_json to_json(const Confirmation& confirmation, const PlanCost& cost);

}  // namespace lamina::analysis
