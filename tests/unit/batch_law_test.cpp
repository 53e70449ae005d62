#include "impl/analysis/batch_law.h"

#include <gtest/gtest.h>

#include "impl/analysis/forms.h"
#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

TEST(Family, TrillionParameterModel) {
  const ModelShape model = family_model(160);
  EXPECT_EQ(model.layers, 160);
  EXPECT_EQ(model.hidden, 25600);
  EXPECT_EQ(model.heads, 160);
  EXPECT_EQ(model.sequence, 2560);
  EXPECT_DOUBLE_EQ(total_parameters(model), 1'258'291'200'000.0);
  EXPECT_THROW(family_model(0), UsageError);
  EXPECT_THROW(family_model(1'000'000), UsageError);
}

TEST(CriticalBatch, Gpt3Law) {
  EXPECT_DOUBLE_EQ(critical_batch_tokens(BatchLaw::gpt3, 1.75e11), 3.2e6);
  EXPECT_NEAR(critical_batch_tokens(BatchLaw::gpt3, 8 * 1.75e11), 6.4e6, 1);
  // (1.2582912e12 / 1.75e11)^(1/3) = 7.190235^(1/3) = 1.930105
  EXPECT_NEAR(critical_batch_tokens(BatchLaw::gpt3, 1'258'291'200'000.0), 6.17634e6, 50);
}

TEST(CriticalBatch, KaplanLaw) {
  EXPECT_NEAR(critical_batch_tokens(BatchLaw::kaplan, 8.8e13), 2e8, 1);  // a loss of 1
  EXPECT_NEAR(critical_batch_tokens(BatchLaw::kaplan, 1.75e11) / 3.2e6, 6.6, 0.05);
  EXPECT_NEAR(
      critical_batch_tokens(BatchLaw::kaplan, 1.2582912e12) / critical_batch_tokens(BatchLaw::gpt3, 1.2582912e12), 7.0,
      0.05);
}

TEST(Steps, BelowTheCriticalBatch) {
  EXPECT_DOUBLE_EQ(training_steps(StepRule::same_tokens, 1), 1e5);
  EXPECT_DOUBLE_EQ(training_steps(StepRule::same_tokens, 0.5), 2e5);
  EXPECT_DOUBLE_EQ(training_steps(StepRule::same_loss, 1), 1e5);
  EXPECT_DOUBLE_EQ(training_steps(StepRule::same_loss, 0.5), 1.5e5);
}

TEST(Names, ThereAndBack) {
  EXPECT_EQ(batch_law_named("gpt3"), BatchLaw::gpt3);
  EXPECT_EQ(batch_law_named("kaplan"), BatchLaw::kaplan);
  EXPECT_EQ(step_rule_named("same_tokens"), StepRule::same_tokens);
  EXPECT_EQ(step_rule_named("same_loss"), StepRule::same_loss);
  EXPECT_THROW(batch_law_named("chinchilla"), UsageError);
  EXPECT_THROW(step_rule_named(""), UsageError);
}

}  // namespace
}  // namespace lamina::analysis
