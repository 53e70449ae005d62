// How large a batch may usefully be, how many steps training takes, and the model family of the paper.
#pragma once

#include <cstdint>
#include <string_view>

#include "impl/plan/model_shape.h"

namespace lamina::analysis {

// X_x: x layers, x heads of size x, hidden x², sequence 16 x; 12 x⁵ parameters in its layers. X_160 has 1.26·10¹².
// Throws UsageError outside 1..4096.
ModelShape family_model(std::int64_t x);

// Critical batch in tokens for p parameters.
//   gpt3:   3.2·10⁶ (p / 1.75·10¹¹)^(1/3): GPT-3's published batch (arXiv 2005.14165); the exponent is this project's
//   kaplan: 2·10⁸ / ℒ^(1/0.21), ℒ = (8.8·10¹³ / p)^0.076 (arXiv 2001.08361)
enum class BatchLaw : std::uint8_t { gpt3, kaplan };
std::string_view name_of(BatchLaw law);
BatchLaw batch_law_named(std::string_view name);  // throws UsageError
double critical_batch_tokens(BatchLaw law, double parameters);

// Steps below the critical batch B_c, relative to those at it.
//   same_tokens: B_c / B, the cautious rule: the same number of tokens whatever the batch
//   same_loss:   (1 + B_c / B) / 2, what the scaling-law papers give for the same loss
enum class StepRule : std::uint8_t { same_tokens, same_loss };
std::string_view name_of(StepRule rule);
StepRule step_rule_named(std::string_view name);  // throws UsageError

constexpr double steps_at_critical_batch = 1e5;

// Steps of a training with batch `share` times the critical one, 0 < share ≤ 1 (a larger batch is not used).
constexpr double training_steps(StepRule rule, double share) {
  return steps_at_critical_batch * (rule == StepRule::same_tokens ? 1 / share : (1 + 1 / share) / 2);
}

}  // namespace lamina::analysis
