// What must hold of the model whatever its size: derivatives, recomputation, splitting, repetition.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/model_single_rank.h"

namespace lamina {
namespace {

using lamina::testing::read_sequences;
using lamina::testing::Sequences;
using lamina::testing::SingleRank;

Sequences random_sequences(const ModelShape& shape, std::int64_t count) {
  const auto source = open_token_source({.kind = DataConfig::Kind::synthetic, .path = "", .seed = 5}, shape.sequence,
                                        shape.vocabulary, 5);
  Sequences sequences = read_sequences(*source, shape.sequence, count);
  for (std::size_t i = 0; i < sequences.targets.size(); i += 5) {
    sequences.targets[i] = -1;
  }
  // At least one target counts, however few there are.
  sequences.targets.back() = sequences.tokens.front();
  return sequences;
}

// Weights away from the initial ones, so that attention is far from uniform and biases and norms matter.
template <class Real>
void scatter_weights(SingleRank<Real>& model) {
  model.initialize(3);
  std::size_t at = 0;
  for (auto& state : model.units()) {
    for (Real& value : state.parameters) {
      value += static_cast<Real>(0.3 * std::sin(static_cast<double>(++at) * 0.7));
    }
  }
}

const ModelShape kShapes[] = {
    {.layers = 2, .hidden = 6, .heads = 2, .sequence = 5, .vocabulary = 97},
    {.layers = 1, .hidden = 6, .heads = 1, .sequence = 1, .vocabulary = 7},
    {.layers = 2, .hidden = 5, .heads = 1, .sequence = 2, .vocabulary = 3},
    {.layers = 1, .hidden = 21, .heads = 3, .sequence = 67, .vocabulary = 31},  // an odd last block of queries
    {.layers = 1, .hidden = 8, .heads = 2, .sequence = 131, .vocabulary = 13},  // three blocks
};

// The second witness beside the golden values: the slope of the loss along single parameters of every tensor.
TEST(TransformerTest, GradientIsTheSlopeOfTheLoss) {
  for (const ModelShape& shape : kShapes) {
    SingleRank<double> model(shape, 2, Recompute::none);
    scatter_weights(model);
    const Sequences batch = random_sequences(shape, 2);
    model.forward_backward(batch);
    const std::vector<SingleRank<double>::UnitState> units = model.units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (const TensorLayout& tensor : units[u].layout) {
        for (std::int64_t at = 0; at < tensor.elements; at += tensor.elements / 3 + 1) {
          const auto index = static_cast<std::size_t>(tensor.offset + at);
          constexpr double kStep = 1e-5;
          double& parameter = model.units()[u].parameters[index];
          const double centre = parameter;
          parameter = centre + kStep;
          const double above = model.forward_backward(batch);
          parameter = centre - kStep;
          const double below = model.forward_backward(batch);
          parameter = centre;
          EXPECT_NEAR((above - below) / (2 * kStep), units[u].gradient[index], 1e-7)
              << tensor.name << "[" << at << "], sequence " << shape.sequence;
        }
      }
    }
  }
}

// The largest difference of two models' gradients, in units of the largest gradient of the tensor it is in.
template <class Real>
double largest_difference(const SingleRank<Real>& a, const SingleRank<Real>& b) {
  double worst = 0;
  const auto others = b.gradients();
  for (const auto& [name, values] : a.gradients()) {
    double largest = 1e-6;
    double difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - others.at(name)[i]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

template <class Real>
class Transformers : public ::testing::Test {};
using Reals = ::testing::Types<double, float>;
TYPED_TEST_SUITE(Transformers, Reals);

// Recomputing repeats the very same operations: the same bits.
TYPED_TEST(Transformers, RecomputationChangesNoBit) {
  for (const ModelShape& shape : kShapes) {
    const Sequences batch = random_sequences(shape, 4);
    SingleRank<TypeParam> kept(shape, 2, Recompute::none);
    scatter_weights(kept);
    const double loss = kept.forward_backward(batch);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      SingleRank<TypeParam> recomputed(shape, 2, recompute);
      scatter_weights(recomputed);
      EXPECT_EQ(recomputed.forward_backward(batch), loss);
      EXPECT_EQ(largest_difference(recomputed, kept), 0) << name_of(recompute) << ", sequence " << shape.sequence;
    }
  }
}

TYPED_TEST(Transformers, SplittingChangesRoundingOnly) {
  for (const ModelShape& shape : kShapes) {
    const Sequences batch = random_sequences(shape, 6);
    SingleRank<TypeParam> whole(shape, 6, Recompute::none);
    scatter_weights(whole);
    const double loss = whole.forward_backward(batch);
    for (const std::int64_t size : {1, 2, 3}) {
      SingleRank<TypeParam> split(shape, size, Recompute::none);
      scatter_weights(split);
      EXPECT_NEAR(split.forward_backward(batch) / loss, 1, 100 * std::numeric_limits<TypeParam>::epsilon());
      EXPECT_LT(largest_difference(split, whole), 1000 * std::numeric_limits<TypeParam>::epsilon())
          << "micro-batches of " << size << ", sequence " << shape.sequence;
    }
  }
}

TYPED_TEST(Transformers, TheSameCallTwiceGivesTheSameBits) {
  const ModelShape shape = {.layers = 2, .hidden = 48, .heads = 4, .sequence = 70, .vocabulary = 97};
  const Sequences batch = random_sequences(shape, 4);
  for (const int threads : {1, 2}) {
    SingleRank<TypeParam> model(shape, 2, Recompute::none, threads);
    scatter_weights(model);
    const double loss = model.forward_backward(batch);
    const auto gradients = model.gradients();
    const double norm = model.gradient_norm();
    EXPECT_EQ(model.forward_backward(batch), loss);
    EXPECT_EQ(model.gradients(), gradients);
    EXPECT_EQ(model.gradient_norm(), norm);
  }
}

// Control: different targets of the same counts must be seen as a difference far beyond rounding.
TEST(TransformerControl, AnotherMicroBatchsTargetsDiffer) {
  const ModelShape& shape = kShapes[0];
  const Sequences batch = random_sequences(shape, 4);
  Sequences swapped = batch;
  const std::int64_t half = std::ssize(batch.targets) / 2;
  std::swap_ranges(swapped.targets.begin(), swapped.targets.begin() + half, swapped.targets.begin() + half);
  SingleRank<double> right(shape, 2, Recompute::none);
  SingleRank<double> wrong(shape, 2, Recompute::none);
  scatter_weights(right);
  scatter_weights(wrong);
  right.forward_backward(batch);
  wrong.forward_backward(swapped);
  EXPECT_GT(largest_difference(wrong, right), 1e-3);
}

TEST(TransformerTest, NothingCountedGivesNoLossAndNoGradient) {
  const ModelShape& shape = kShapes[0];
  Transformer<double> transformer(shape, 1, Recompute::none, 1);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(shape.sequence), -1);
  const auto sized = [](std::int64_t size, double value) {
    return std::vector<double>(static_cast<std::size_t>(size), value);
  };
  const std::vector<double> parameters = sized(unit_parameters(shape, head_unit()), 0.5);
  std::vector<double> input = sized(transformer.activation_elements(), 0);
  for (std::size_t i = 0; i < input.size(); ++i) {
    input[i] = std::sin(static_cast<double>(i));
  }
  std::vector<double> activation_gradient = sized(transformer.activation_elements(), 3);
  std::vector<double> gradient = sized(unit_parameters(shape, head_unit()), 3);
  std::vector<double> workspace = sized(transformer.head_workspace_elements(), 3);
  EXPECT_EQ(transformer.head(parameters.data(), input.data(), targets, 1.0, activation_gradient.data(), gradient.data(),
                             false, workspace.data()),
            0);
  EXPECT_EQ(activation_gradient, sized(transformer.activation_elements(), 0));
  EXPECT_EQ(gradient, sized(unit_parameters(shape, head_unit()), 0));
}

TEST(TransformerTest, SizesAreAsTheHeaderSays) {
  const ModelShape shape = {.layers = 2, .hidden = 6, .heads = 2, .sequence = 5, .vocabulary = 97};
  const Transformer<float> none(shape, 3, Recompute::none, 1);
  const Transformer<float> selective(shape, 3, Recompute::selective, 1);
  const Transformer<float> full(shape, 3, Recompute::full, 1);
  EXPECT_EQ(none.activation_elements(), 90);
  EXPECT_EQ(none.saved_elements(), 15 * (9 * 6 + 4) + 150);  // b·heads·s·s = 150 probabilities
  EXPECT_EQ(selective.saved_elements(), 15 * (9 * 6 + 4));
  EXPECT_EQ(full.saved_elements(), selective.saved_elements());
  EXPECT_EQ(none.head_workspace_elements(), 15 * (97 + 6 + 2));
  // Two wide and two narrow buffers, one head's block of score gradients, a loss in double for each token.
  EXPECT_EQ(none.scratch_bytes(), 4 * (2 * 360 + 2 * 90 + 25) + 8 * 15);
  EXPECT_EQ(full.scratch_bytes(), none.scratch_bytes() + 4 * 25);
}

// What forward reads, writes and saves ends where it says: the words behind every buffer stay as they were.
TEST(TransformerTest, BuffersAreNotOverrun) {
  constexpr std::int64_t kGuard = 64;
  constexpr float kMark = 1234.5F;
  for (const ModelShape& shape : kShapes) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      Transformer<float> transformer(shape, 2, recompute, 1);
      const auto guarded = [&](std::int64_t size) {
        std::vector<float> buffer(static_cast<std::size_t>(size + kGuard), 0.25F);
        std::fill(buffer.end() - kGuard, buffer.end(), kMark);
        return buffer;
      };
      const std::vector<float> parameters = guarded(unit_parameters(shape, layer_unit(0)));
      const std::vector<float> input = guarded(transformer.activation_elements());
      std::vector<float> output = guarded(transformer.activation_elements());
      std::vector<float> saved = guarded(transformer.saved_elements());
      std::vector<float> gradient = guarded(unit_parameters(shape, layer_unit(0)));
      transformer.layer_forward(parameters.data(), input.data(), output.data(), saved.data());
      transformer.layer_backward(parameters.data(), input.data(), saved.data(), output.data(), gradient.data(), false);
      for (const std::vector<float>* buffer : {&output, &saved, &gradient}) {
        EXPECT_EQ(std::vector<float>(buffer->end() - kGuard, buffer->end()), std::vector<float>(kGuard, kMark));
      }
    }
  }
}

TEST(TransformerTest, TheBlasSaysWhatItIs) {
  EXPECT_NE(blas_info().name.find("OpenBLAS"), std::string::npos) << blas_info().name;
  EXPECT_FALSE(blas_info().core.empty());
}

}  // namespace
}  // namespace lamina
