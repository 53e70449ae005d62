#include "impl/analysis/confirmation.h"

namespace lamina::analysis {
namespace {

nlohmann::ordered_json number_or_null(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::optional<double> confirmed_training_s(const Confirmation& confirmation, const PlanCost& cost) {
  return confirmation.step_s ? std::optional(*confirmation.step_s * cost.steps) : std::nullopt;
}

std::optional<double> over_form(const Confirmation& confirmation, const PlanCost& cost) {
  return confirmation.step_s ? std::optional(*confirmation.step_s / cost.step.total_s) : std::nullopt;
}

nlohmann::ordered_json to_json(const Confirmation& confirmation, const PlanCost& cost) {
  std::optional<double> days = confirmed_training_s(confirmation, cost);
  if (days) {
    *days /= seconds_per_day;
  }
  return {{"step_time_s", number_or_null(confirmation.step_s)},
          {"training_days", number_or_null(days)},
          {"over_form", number_or_null(over_form(confirmation, cost))},
          {"ops", confirmation.step_s ? nlohmann::ordered_json(confirmation.ops) : nlohmann::ordered_json(nullptr)},
          {"verified", confirmation.verified},
          {"reason", confirmation.reason.empty() ? nlohmann::ordered_json(nullptr)
                                                 : nlohmann::ordered_json(confirmation.reason)}};
}

}  // namespace lamina::analysis
