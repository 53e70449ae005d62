#include "impl/analysis/batch_law.h"

#include <cmath>

#include "impl/base/error.h"

namespace lamina::analysis {

ModelShape family_model(std::int64_t x) {
  if (x < 1 || x > 4096) {
    throw UsageError(fmt::format("model.family is {}; X_x takes x from 1 to 4096", x));
  }
  return {.layers = x, .hidden = x * x, .heads = x, .sequence = 16 * x, .vocabulary = 1};
}

std::string_view name_of(BatchLaw law) { return law == BatchLaw::gpt3 ? "gpt3" : "kaplan"; }

BatchLaw batch_law_named(std::string_view name) {
  for (const BatchLaw law : {BatchLaw::gpt3, BatchLaw::kaplan}) {
    if (name == name_of(law)) {
      return law;
    }
  }
  throw UsageError(fmt::format("batch law '{}' is not known; it is gpt3 or kaplan", name));
}

double critical_batch_tokens(BatchLaw law, double parameters) {
  if (law == BatchLaw::gpt3) {
    return 3.2e6 * std::cbrt(parameters / 1.75e11);
  }
  const double loss = std::pow(8.8e13 / parameters, 0.076);
  return 2e8 / std::pow(loss, 1 / 0.21);
}

std::string_view name_of(StepRule rule) { return rule == StepRule::same_tokens ? "same_tokens" : "same_loss"; }

StepRule step_rule_named(std::string_view name) {
  for (const StepRule rule : {StepRule::same_tokens, StepRule::same_loss}) {
    if (name == name_of(rule)) {
      return rule;
    }
  }
  throw UsageError(fmt::format("step rule '{}' is not known; it is same_tokens or same_loss", name));
}

}  // namespace lamina::analysis
