// SGD and AdamW on ranges of a unit, norms, and that shards and threads change nothing.
#include "impl/model/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lamina {
namespace {

const ModelShape kShape = {.layers = 1, .hidden = 6, .heads = 2, .sequence = 5, .vocabulary = 97};

OptimizerConfig adamw_config() {
  return {.kind = OptimizerConfig::Kind::adamw,
          .learning_rate = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .clip_norm = 0};
}

std::vector<double> waves(std::int64_t count, double frequency) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<double>(i + 1) * frequency);
  }
  return values;
}

struct State {
  std::vector<double> parameters, gradient, moment1, moment2;
  explicit State(std::int64_t count)
      : parameters(waves(count, 0.3)),
        gradient(waves(count, 0.7)),
        moment1(static_cast<std::size_t>(count)),
        moment2(static_cast<std::size_t>(count)) {}
};

void update(const OptimizerConfig& config, State& state, std::int64_t begin, std::int64_t end, std::int64_t step,
            double gradient_scale = 1, int threads = 1) {
  update_range(config, unit_layout(kShape, layer_unit(0)), begin, end, step, gradient_scale,
               state.parameters.data() + begin, state.gradient.data() + begin, state.moment1.data() + begin,
               state.moment2.data() + begin, threads);
}

// The plain formulas, from arXiv 1711.05101.
TEST(OptimizerTest, TwoStepsOfAdamWByThePlainFormula) {
  const std::int64_t count = unit_parameters(kShape, layer_unit(0));
  State state(count);
  update(adamw_config(), state, 0, count, 1, 0.5);
  update(adamw_config(), state, 0, count, 2, 0.5);
  const State start(count);
  for (const TensorLayout& tensor : unit_layout(kShape, layer_unit(0))) {
    const double decay = tensor.shape.size() >= 2 ? 0.1 : 0;
    for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double g = 0.5 * start.gradient[at];
      double p = start.parameters[at];
      double m = 0;
      double v = 0;
      for (const int step : {1, 2}) {
        m = 0.9 * m + 0.1 * g;
        v = 0.95 * v + 0.05 * g * g;
        const double m_hat = m / (1 - std::pow(0.9, step));
        const double v_hat = v / (1 - std::pow(0.95, step));
        p = p - 0.01 * decay * p - 0.01 * m_hat / (std::sqrt(v_hat) + 1e-8);
      }
      ASSERT_NEAR(state.parameters[at], p, 1e-14) << tensor.name;
    }
  }
}

TEST(OptimizerTest, SgdByThePlainFormula) {
  const std::int64_t count = unit_parameters(kShape, layer_unit(0));
  OptimizerConfig config{.kind = OptimizerConfig::Kind::sgd, .learning_rate = 0.1};
  config.weight_decay = 0.5;
  State state(count);
  update(config, state, 0, count, 1, 2.0);
  const State start(count);
  for (const TensorLayout& tensor : unit_layout(kShape, layer_unit(0))) {
    const double decay = tensor.shape.size() >= 2 ? 0.5 : 0;
    for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double expected = start.parameters[at] - 0.1 * (2 * start.gradient[at] + decay * start.parameters[at]);
      ASSERT_NEAR(state.parameters[at], expected, 1e-15) << tensor.name;
    }
  }
}

// Shards that cut tensors anywhere, padding included, update as the whole does, bit for bit.
TEST(OptimizerTest, ShardsUpdateAsTheWholeDoes) {
  const std::int64_t count = unit_parameters(kShape, layer_unit(0));
  for (const OptimizerConfig::Kind kind : {OptimizerConfig::Kind::sgd, OptimizerConfig::Kind::adamw}) {
    OptimizerConfig config = adamw_config();
    config.kind = kind;
    for (const std::int64_t parts : {1, 2, 3, 5, 7}) {
      const std::int64_t shard = (count + parts - 1) / parts;
      State whole(shard * parts);
      State sharded(shard * parts);
      update(config, whole, 0, count, 3);
      for (std::int64_t part = 0; part < parts; ++part) {
        update(config, sharded, part * shard, (part + 1) * shard, 3);
      }
      EXPECT_EQ(sharded.parameters, whole.parameters) << parts;
      EXPECT_EQ(sharded.moment1, whole.moment1) << parts;
      EXPECT_EQ(sharded.moment2, whole.moment2) << parts;
    }
  }
}

TEST(OptimizerTest, PaddingIsNotTouched) {
  const std::int64_t count = unit_parameters(kShape, layer_unit(0));
  State state(count + 9);
  const State start(count + 9);
  update(adamw_config(), state, 0, count + 9, 1);
  for (std::size_t i = static_cast<std::size_t>(count); i < state.parameters.size(); ++i) {
    EXPECT_EQ(state.parameters[i], start.parameters[i]);
    EXPECT_EQ(state.moment1[i], 0);
    EXPECT_EQ(state.moment2[i], 0);
  }
}

TEST(OptimizerTest, ThreadsChangeNoBit) {
  const ModelShape shape = {.layers = 1, .hidden = 64, .heads = 2, .sequence = 5, .vocabulary = 97};
  const std::int64_t count = unit_parameters(shape, layer_unit(0));
  State alone(count);
  State together(count);
  for (const int threads : {1, 2}) {
    State& state = threads == 1 ? alone : together;
    update_range(adamw_config(), unit_layout(shape, layer_unit(0)), 0, count, 1, 1.0, state.parameters.data(),
                 state.gradient.data(), state.moment1.data(), state.moment2.data(), threads);
  }
  EXPECT_EQ(together.parameters, alone.parameters);
  const std::vector<double> values = waves(5'000'001, 0.9);
  EXPECT_EQ(sum_of_squares(values.data(), std::ssize(values), 2), sum_of_squares(values.data(), std::ssize(values), 1));
}

TEST(OptimizerTest, SumOfSquaresIsAccumulatedInDouble) {
  const std::vector<float> values(3'000'000, 0.1F);
  const double square = static_cast<double>(0.1F) * static_cast<double>(0.1F);
  EXPECT_NEAR(sum_of_squares(values.data(), std::ssize(values), 1) / (3e6 * square), 1, 1e-12);
  EXPECT_EQ(sum_of_squares(values.data(), 0, 1), 0);
  EXPECT_EQ(sum_of_squares(values.data(), 1, 1), square);
}

}  // namespace
}  // namespace lamina
