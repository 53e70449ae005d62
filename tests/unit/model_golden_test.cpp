// The model held to losses, gradients and norms that were computed elsewhere (tests/golden).
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/model_single_rank.h"

namespace lamina {
namespace {

using lamina::testing::read_sequences;
using lamina::testing::Sequences;
using lamina::testing::SingleRank;

struct Golden {
  ModelShape shape;
  Sequences batch;
  std::map<std::string, NamedTensor> weights, gradients;
  nlohmann::json expected;
};

Golden read_golden(const std::string& name) {
  const std::string folder = std::string(LAMINA_TEST_DATA_DIR) + "/golden/" + name;
  Golden golden;
  golden.expected = nlohmann::json::parse(std::ifstream(folder + "/expected.json"));
  const nlohmann::json& model = golden.expected["model"];
  golden.shape = {.layers = model["layers"],
                  .hidden = model["hidden"],
                  .heads = model["heads"],
                  .sequence = model["sequence"],
                  .vocabulary = model["vocabulary"]};
  const auto source =
      open_token_source({.kind = DataConfig::Kind::json_file, .path = folder + "/batch.json", .seed = 1},
                        golden.shape.sequence, golden.shape.vocabulary, 1);
  golden.batch = read_sequences(*source, golden.shape.sequence, model["batch"]);
  golden.weights = read_safetensors(folder + "/weights.safetensors");
  golden.gradients = read_safetensors(folder + "/gradients.safetensors");
  return golden;
}

double norm_of(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) {
    total += value * value;
  }
  return std::sqrt(total);
}

// Queries', keys' and values' biases share a tensor but not a size: no loss depends on the keys' biases, whose gradient
// is nothing but rounding. They are compared as three.
std::map<std::string, std::vector<double>> compared(const std::map<std::string, std::vector<double>>& tensors) {
  std::map<std::string, std::vector<double>> parts;
  for (const auto& [name, values] : tensors) {
    if (!name.ends_with("attn.c_attn.bias")) {
      parts[name] = values;
      continue;
    }
    const std::ptrdiff_t third = std::ssize(values) / 3;
    for (std::ptrdiff_t part = 0; part < 3; ++part) {
      const auto begin = values.begin() + part * third;
      parts[name + " of " + std::array{"queries", "keys", "values"}[static_cast<std::size_t>(part)]] =
          std::vector<double>(begin, begin + third);
    }
  }
  return parts;
}

// Per tensor: how far the gradient is from the golden one, relative to the golden one's norm; where that is nearly
// zero, by its largest element alone.
struct Distance {
  std::string tensor;
  double relative = 0;
  double largest = 0;  // element, of the difference
  bool nearly_zero = false;
};

std::vector<Distance> distances(const std::map<std::string, std::vector<double>>& gradients, const Golden& golden) {
  std::map<std::string, std::vector<double>> golden_gradients;
  for (const auto& [name, tensor] : golden.gradients) {
    golden_gradients[name] = tensor.values;
  }
  const std::map<std::string, std::vector<double>> ours_by_name = compared(gradients);
  std::vector<Distance> all;
  for (const auto& [name, values] : compared(golden_gradients)) {
    const std::vector<double>& ours = ours_by_name.at(name);
    std::vector<double> difference(ours.size());
    Distance distance{.tensor = name};
    for (std::size_t i = 0; i < ours.size(); ++i) {
      difference[i] = ours[i] - values[i];
      distance.largest = std::max(distance.largest, std::abs(difference[i]));
    }
    const double norm = norm_of(values);
    distance.nearly_zero = norm < 1e-9;
    distance.relative = distance.nearly_zero ? 0 : norm_of(difference) / norm;
    all.push_back(distance);
  }
  return all;
}

template <class Real>
struct Tolerance;
template <>
struct Tolerance<double> {
  static constexpr double gradient = 1e-12, largest = 1e-16, loss = 1e-13, training = 1e-11;
};
template <>
struct Tolerance<float> {
  static constexpr double gradient = 1e-5, largest = 1e-7, loss = 1e-6, training = 1e-5;
};

template <class Real>
class ModelGolden : public ::testing::Test {};
using Reals = ::testing::Types<double, float>;
TYPED_TEST_SUITE(ModelGolden, Reals);

template <class Real>
void expect_golden(const std::string& name, std::int64_t micro_batch_size, Recompute recompute, int threads = 1) {
  SCOPED_TRACE(name + ", micro-batches of " + std::to_string(micro_batch_size) + ", recompute " +
               std::string(name_of(recompute)));
  const Golden golden = read_golden(name);
  SingleRank<Real> model(golden.shape, micro_batch_size, recompute, threads);
  model.load(golden.weights);
  const double loss = model.forward_backward(golden.batch);
  const double golden_loss = golden.expected["loss"];
  EXPECT_NEAR(loss / golden_loss, 1, Tolerance<Real>::loss);
  const double golden_norm = golden.expected["gradient_norm"];
  EXPECT_NEAR(model.gradient_norm() / golden_norm, 1, Tolerance<Real>::gradient);
  for (const Distance& distance : distances(model.gradients(), golden)) {
    EXPECT_LE(distance.relative, Tolerance<Real>::gradient) << distance.tensor;
    if (distance.nearly_zero) {
      EXPECT_LE(distance.largest, Tolerance<Real>::largest) << distance.tensor;
    }
  }
}

TYPED_TEST(ModelGolden, WholeBatchAtOnce) {
  expect_golden<TypeParam>("tiny", 6, Recompute::none);
  expect_golden<TypeParam>("masked", 8, Recompute::none);
}

// Different numbers of counted targets in every micro-batch: a mean of means would differ.
TYPED_TEST(ModelGolden, SplitIntoMicroBatches) {
  for (const std::int64_t size : {1, 2, 3}) {
    expect_golden<TypeParam>("tiny", size, Recompute::none);
  }
  for (const std::int64_t size : {1, 2, 4}) {
    expect_golden<TypeParam>("masked", size, Recompute::none);
  }
}

TYPED_TEST(ModelGolden, EveryRecomputation) {
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    expect_golden<TypeParam>("tiny", 2, recompute);
    expect_golden<TypeParam>("masked", 4, recompute);
  }
}

TYPED_TEST(ModelGolden, TwoThreads) {
  expect_golden<TypeParam>("tiny", 3, Recompute::none, 2);
  expect_golden<TypeParam>("masked", 2, Recompute::full, 2);
}

template <class Real>
void expect_losses(const std::string& name, const std::string& optimizer, std::int64_t micro_batch_size) {
  SCOPED_TRACE(name + ", " + optimizer + ", micro-batches of " + std::to_string(micro_batch_size));
  const Golden golden = read_golden(name);
  const nlohmann::json& run = golden.expected[optimizer];
  OptimizerConfig config{.learning_rate = run["learning_rate"]};
  if (optimizer == "adamw") {
    config.kind = OptimizerConfig::Kind::adamw;
    config.beta1 = run["beta1"];
    config.beta2 = run["beta2"];
    config.epsilon = run["epsilon"];
    config.weight_decay = run["weight_decay"];
  }
  SingleRank<Real> model(golden.shape, micro_batch_size, Recompute::none);
  model.load(golden.weights);
  const std::vector<double> losses = run["losses"];
  ASSERT_EQ(losses.size(), 6U);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(model.forward_backward(golden.batch) / losses[step], 1, Tolerance<Real>::training) << "step " << step;
    model.update(config, static_cast<std::int64_t>(step) + 1);
  }
}

TYPED_TEST(ModelGolden, SixStepsOfSgd) {
  expect_losses<TypeParam>("tiny", "sgd", 6);
  expect_losses<TypeParam>("tiny", "sgd", 2);
  expect_losses<TypeParam>("masked", "sgd", 8);
  expect_losses<TypeParam>("masked", "sgd", 1);
}

TYPED_TEST(ModelGolden, SixStepsOfAdamW) {
  expect_losses<TypeParam>("tiny", "adamw", 6);
  expect_losses<TypeParam>("tiny", "adamw", 2);
  expect_losses<TypeParam>("masked", "adamw", 8);
  expect_losses<TypeParam>("masked", "adamw", 1);
}

// Controls: the comparison above must notice what it is there for.
double worst_relative(const Golden& golden, SingleRank<double>& model, const Sequences& batch) {
  model.load(golden.weights);
  model.forward_backward(batch);
  double worst = 0;
  for (const Distance& distance : distances(model.gradients(), golden)) {
    worst = std::max(worst, distance.relative);
  }
  return worst;
}

TEST(ModelGoldenControl, TargetsOfTwoMicroBatchesSwapped) {
  const Golden golden = read_golden("tiny");
  SingleRank<double> model(golden.shape, 2, Recompute::none);
  EXPECT_LE(worst_relative(golden, model, golden.batch), Tolerance<double>::gradient);
  Sequences swapped = golden.batch;
  const std::int64_t micro_batch = 2 * golden.shape.sequence;
  std::swap_ranges(swapped.targets.begin(), swapped.targets.begin() + micro_batch,
                   swapped.targets.begin() + micro_batch);
  EXPECT_GT(worst_relative(golden, model, swapped), 1e-3);
}

TEST(ModelGoldenControl, GradientsOfTwoLayersSwapped) {
  const Golden golden = read_golden("tiny");
  SingleRank<double> model(golden.shape, 6, Recompute::none);
  model.load(golden.weights);
  model.forward_backward(golden.batch);
  std::map<std::string, std::vector<double>> gradients = model.gradients();
  std::swap(gradients["transformer.h.0.mlp.c_fc.weight"], gradients["transformer.h.1.mlp.c_fc.weight"]);
  double worst = 0;
  for (const Distance& distance : distances(gradients, golden)) {
    worst = std::max(worst, distance.relative);
  }
  EXPECT_GT(worst, 1e-3);
}

}  // namespace
}  // namespace lamina
