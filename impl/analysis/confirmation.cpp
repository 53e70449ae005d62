#include "impl/analysis/confirmation.h"

#include "impl/base/strict_json.h"

namespace lamina::analysis {

std::optional<double> confirmed_training_s(const Confirmation& confirmation, const PlanCost& cost) {
  return confirmation.step_s ? std::optional(*confirmation.step_s * cost.steps) : std::nullopt;
}

std::optional<double> confirmed_training_days(const Confirmation& confirmation, const PlanCost& cost) {
  const std::optional<double> training_s = confirmed_training_s(confirmation, cost);
  return training_s ? std::optional(*training_s / seconds_per_day) : std::nullopt;
}

std::optional<double> over_form(const Confirmation& confirmation, const PlanCost& cost) {
  return confirmation.step_s ? std::optional(*confirmation.step_s / cost.step.total_s) : std::nullopt;
}

nlohmann::ordered_json to_json(const Confirmation& confirmation, const PlanCost& cost) {
  return {{"step_time_s", or_null(confirmation.step_s)},
          {"training_days", or_null(confirmed_training_days(confirmation, cost))},
          {"over_form", or_null(over_form(confirmation, cost))},
          {"ops", confirmation.step_s ? Json(confirmation.ops) : Json(nullptr)},
          {"verified", confirmation.verified},
          {"reason", text_or_null(confirmation.reason)}};
}

}  // namespace lamina::analysis
