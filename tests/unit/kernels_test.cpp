// Every row kernel by every launcher against the plain loop that stands above it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "impl/kernels/cross_entropy.h"
#include "impl/kernels/emulated_block.h"
#include "impl/kernels/gelu.h"
#include "impl/kernels/launch.h"
#include "impl/kernels/layer_norm.h"
#include "impl/kernels/matrix.h"
#include "impl/kernels/rows.h"
#include "impl/kernels/softmax.h"
#include "impl/kernels/update.h"

namespace lamina::kernels {
namespace {

// Numbers between -2 and 2 that differ from place to place and from array to array.
template <class Real>
std::vector<Real> numbers(std::int64_t count, int array) {
  std::vector<Real> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<Real>(2 * std::sin(static_cast<double>(i) * 1.7 + array * 0.37 + 0.1));
  }
  return values;
}

template <class Real>
void expect_close(const std::vector<Real>& actual, const std::vector<double>& expected, double epsilons,
                  const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double scale = 1;
  for (const double value : expected) {
    scale = std::max(scale, std::abs(value));
  }
  const double tolerance = epsilons * std::numeric_limits<Real>::epsilon() * scale;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(actual[i]), expected[i], tolerance) << what << "[" << i << "]";
  }
}

// Runs the kernel that `make` builds on a copy of `buffers` by every launcher; `check` looks at each result.
template <class Buffers, class Make, class Check>
void on_every_team(const Buffers& buffers, std::int64_t rows, Make make, Check check) {
  const auto by = [&](const std::string& launcher, auto launch) {
    SCOPED_TRACE(launcher);
    Buffers own = buffers;
    launch(make(own));
    check(own);
  };
  by("loop", [&](const auto& kernel) { launch_rows_in_packs<1>(kernel, rows, 1); });
  by("loop in packs of a register", [&](const auto& kernel) { launch_rows(kernel, rows, 1); });
  by("block of 1", [&](const auto& kernel) { launch_rows_on_emulated_block<1>(kernel, rows, 1); });
  by("block of 3", [&](const auto& kernel) { launch_rows_on_emulated_block<1>(kernel, rows, 3); });
  by("block of 5 in packs of 4", [&](const auto& kernel) { launch_rows_on_emulated_block<4>(kernel, rows, 5); });
}

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kColumns[] = {1, 2, 6, 16, 37, 97, 261};

template <class Real>
class Kernels : public ::testing::Test {};
using Reals = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Kernels, Reals);

template <class Real>
struct NormBuffers {
  std::vector<Real> input, weight, bias, output, mean, rstd, output_gradient, input_gradient, weight_gradient,
      bias_gradient;
  explicit NormBuffers(std::int64_t columns)
      : input(numbers<Real>(kRows * columns, 1)),
        weight(numbers<Real>(columns, 2)),
        bias(numbers<Real>(columns, 3)),
        output(kRows * columns, Real(9)),
        mean(kRows),
        rstd(kRows),
        output_gradient(numbers<Real>(kRows * columns, 4)),
        input_gradient(numbers<Real>(kRows * columns, 5)),
        weight_gradient(numbers<Real>(columns, 6)),
        bias_gradient(numbers<Real>(columns, 7)) {}
};

struct NormExpected {
  std::vector<double> normal, output, mean, rstd, input_gradient, weight_gradient, bias_gradient;
};

// The plain loop.
template <class Real>
NormExpected plain_layer_norm(const NormBuffers<Real>& b, std::size_t columns) {
  NormExpected e;
  e.normal.resize(kRows * columns);
  e.output.resize(kRows * columns);
  e.input_gradient.resize(kRows * columns);
  e.weight_gradient.resize(columns);
  e.bias_gradient.resize(columns);
  const double n = static_cast<double>(columns);
  for (std::size_t row = 0; row < kRows; ++row) {
    double mean = 0;
    double variance = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      mean += static_cast<double>(b.input[row * columns + i]) / n;
    }
    for (std::size_t i = 0; i < columns; ++i) {
      variance += std::pow(static_cast<double>(b.input[row * columns + i]) - mean, 2) / n;
    }
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    e.mean.push_back(mean);
    e.rstd.push_back(rstd);
    double mean_gradient = 0;
    double mean_product = 0;
    for (std::size_t i = 0; i < columns; ++i) {
      const std::size_t at = row * columns + i;
      const double dy = static_cast<double>(b.output_gradient[at]);
      const double weight = static_cast<double>(b.weight[i]);
      e.normal[at] = (static_cast<double>(b.input[at]) - mean) * rstd;
      e.output[at] = e.normal[at] * weight + static_cast<double>(b.bias[i]);
      mean_gradient += dy * weight / n;
      mean_product += dy * weight * e.normal[at] / n;
      e.weight_gradient[i] += dy * e.normal[at];
      e.bias_gradient[i] += dy;
    }
    for (std::size_t i = 0; i < columns; ++i) {
      const std::size_t at = row * columns + i;
      const double g = static_cast<double>(b.output_gradient[at]) * static_cast<double>(b.weight[i]);
      e.input_gradient[at] = rstd * (g - mean_gradient - e.normal[at] * mean_product);
    }
  }
  return e;
}

template <class Real>
std::vector<double> sum_of(const std::vector<double>& a, const std::vector<Real>& b) {
  std::vector<double> sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += static_cast<double>(b[i]);
  }
  return sum;
}

TYPED_TEST(Kernels, LayerNormForward) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    SCOPED_TRACE(columns);
    const NormBuffers<Real> buffers(columns);
    const NormExpected expected = plain_layer_norm(buffers, static_cast<std::size_t>(columns));
    on_every_team(
        buffers, kRows,
        [&](NormBuffers<Real>& b) {
          return LayerNormForward<Real>{.columns = columns,
                                        .input = b.input.data(),
                                        .weight = b.weight.data(),
                                        .bias = b.bias.data(),
                                        .output = b.output.data(),
                                        .mean = b.mean.data(),
                                        .rstd = b.rstd.data()};
        },
        [&](const NormBuffers<Real>& b) {
          expect_close(b.output, expected.output, 64, "output");
          expect_close(b.mean, expected.mean, 16, "mean");
          expect_close(b.rstd, expected.rstd, 64, "rstd");
        });
  }
}

template <class Real>
NormBuffers<Real> after_forward(std::int64_t columns) {
  NormBuffers<Real> buffers(columns);
  const NormExpected expected = plain_layer_norm(buffers, static_cast<std::size_t>(columns));
  buffers.mean.assign(expected.mean.begin(), expected.mean.end());
  buffers.rstd.assign(expected.rstd.begin(), expected.rstd.end());
  return buffers;
}

TYPED_TEST(Kernels, LayerNormBackward) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    if (columns == 1) {
      continue;  // its gradient is 0 times 1 / sqrt(1e-5): nothing but rounding
    }
    for (const bool add : {false, true}) {
      SCOPED_TRACE(columns);
      const NormBuffers<Real> buffers = after_forward<Real>(columns);
      const NormExpected expected = plain_layer_norm(buffers, static_cast<std::size_t>(columns));
      on_every_team(
          buffers, kRows,
          [&](NormBuffers<Real>& b) {
            return LayerNormBackward<Real>{.columns = columns,
                                           .input = b.input.data(),
                                           .weight = b.weight.data(),
                                           .bias = b.bias.data(),
                                           .mean = b.mean.data(),
                                           .rstd = b.rstd.data(),
                                           .output_gradient = b.output_gradient.data(),
                                           .input_gradient = b.input_gradient.data(),
                                           .output = add ? b.output.data() : nullptr,
                                           .add_to_input_gradient = add};
          },
          [&](const NormBuffers<Real>& b) {
            expect_close(b.input_gradient,
                         add ? sum_of(expected.input_gradient, buffers.input_gradient) : expected.input_gradient, 256,
                         "input gradient");
            if (add) {
              expect_close(b.output, expected.output, 64, "output");
            }
          });
    }
  }
}

TYPED_TEST(Kernels, LayerNormBackwardInPlace) {
  using Real = TypeParam;
  const std::int64_t columns = 37;
  const NormBuffers<Real> buffers = after_forward<Real>(columns);
  const NormExpected expected = plain_layer_norm(buffers, static_cast<std::size_t>(columns));
  on_every_team(
      buffers, kRows,
      [&](NormBuffers<Real>& b) {
        return LayerNormBackward<Real>{.columns = columns,
                                       .input = b.input.data(),
                                       .weight = b.weight.data(),
                                       .bias = b.bias.data(),
                                       .mean = b.mean.data(),
                                       .rstd = b.rstd.data(),
                                       .output_gradient = b.output_gradient.data(),
                                       .input_gradient = b.output_gradient.data(),
                                       .output = nullptr,
                                       .add_to_input_gradient = false};
      },
      [&](const NormBuffers<Real>& b) { expect_close(b.output_gradient, expected.input_gradient, 64, "gradient"); });
}

TYPED_TEST(Kernels, LayerNormParameterGradient) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    for (const bool add : {false, true}) {
      SCOPED_TRACE(columns);
      const NormBuffers<Real> buffers = after_forward<Real>(columns);
      const NormExpected expected = plain_layer_norm(buffers, static_cast<std::size_t>(columns));
      const auto make = [&](NormBuffers<Real>& b) {
        return LayerNormParameterGradient<Real>{.rows = kRows,
                                                .columns = columns,
                                                .input = b.input.data(),
                                                .mean = b.mean.data(),
                                                .rstd = b.rstd.data(),
                                                .output_gradient = b.output_gradient.data(),
                                                .weight_gradient = b.weight_gradient.data(),
                                                .bias_gradient = b.bias_gradient.data(),
                                                .accumulate_gradient = add};
      };
      NormBuffers<Real> sizing = buffers;
      on_every_team(buffers, make(sizing).tiles(), make, [&](const NormBuffers<Real>& b) {
        expect_close(b.weight_gradient,
                     add ? sum_of(expected.weight_gradient, buffers.weight_gradient) : expected.weight_gradient, 64,
                     "weight gradient");
        expect_close(b.bias_gradient,
                     add ? sum_of(expected.bias_gradient, buffers.bias_gradient) : expected.bias_gradient, 64,
                     "bias gradient");
      });
    }
  }
}

// The plain formulas, by tanh, which needs more digits than the result has.
constexpr long double kRoot = 0.79788456080286535587989211986876L;  // sqrt(2 / pi)
double plain_gelu(double z_) {
  const long double z = z_;
  return static_cast<double>(0.5L * z * (1 + std::tanh(kRoot * (z + 0.044715L * z * z * z))));
}
double plain_gelu_slope(double z_) {
  const long double z = z_;
  const long double t = std::tanh(kRoot * (z + 0.044715L * z * z * z));
  return static_cast<double>(0.5L * (1 + t) + 0.5L * z * (1 - t * t) * kRoot * (1 + 3 * 0.044715L * z * z));
}

template <class Real>
struct GeluBuffers {
  std::vector<Real> input, bias, output, gradient;
};

template <class Real>
GeluBuffers<Real> gelu_buffers(std::int64_t columns) {
  GeluBuffers<Real> b{.input = numbers<Real>(kRows * columns, 1),
                      .bias = numbers<Real>(columns, 2),
                      .output = std::vector<Real>(static_cast<std::size_t>(kRows * columns)),
                      .gradient = numbers<Real>(kRows * columns, 3)};
  for (Real& value : b.input) {
    value *= 4;  // so that the tails are visited
  }
  return b;
}

TYPED_TEST(Kernels, BiasGeluForwardAndBackward) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    SCOPED_TRACE(columns);
    const GeluBuffers<Real> buffers = gelu_buffers<Real>(columns);
    std::vector<double> values;
    std::vector<double> gradients;
    for (std::size_t i = 0; i < buffers.input.size(); ++i) {
      const double z = static_cast<double>(buffers.input[i] + buffers.bias[i % static_cast<std::size_t>(columns)]);
      values.push_back(plain_gelu(z));
      gradients.push_back(static_cast<double>(buffers.gradient[i]) * plain_gelu_slope(z));
    }
    on_every_team(
        buffers, kRows,
        [&](GeluBuffers<Real>& b) {
          return BiasGeluForward<Real>{
              .columns = columns, .input = b.input.data(), .bias = b.bias.data(), .output = b.output.data()};
        },
        [&](const GeluBuffers<Real>& b) { expect_close(b.output, values, 4, "output"); });
    on_every_team(
        buffers, kRows,
        [&](GeluBuffers<Real>& b) {
          return BiasGeluBackward<Real>{.columns = columns,
                                        .input = b.input.data(),
                                        .bias = b.bias.data(),
                                        .gradient = b.gradient.data(),
                                        .output = b.output.data()};
        },
        [&](const GeluBuffers<Real>& b) {
          expect_close(b.output, values, 4, "output");
          expect_close(b.gradient, gradients, 16, "gradient");
        });
  }
}

TYPED_TEST(Kernels, GeluOfExtremeNumbers) {
  using Real = TypeParam;
  GeluBuffers<Real> buffers{.input = {Real(-1e4), Real(1e4), Real(-30), Real(0)},
                            .bias = std::vector<Real>(4),
                            .output = std::vector<Real>(4),
                            .gradient = std::vector<Real>(4, Real(1))};
  on_every_team(
      buffers, 1,
      [&](GeluBuffers<Real>& b) {
        return BiasGeluBackward<Real>{.columns = 4,
                                      .input = b.input.data(),
                                      .bias = b.bias.data(),
                                      .gradient = b.gradient.data(),
                                      .output = b.output.data()};
      },
      [&](const GeluBuffers<Real>& b) {
        EXPECT_EQ(b.output, (std::vector<Real>{0, Real(1e4), 0, 0}));
        EXPECT_EQ(b.gradient, (std::vector<Real>{0, 1, 0, Real(0.5)}));
      });
}

TYPED_TEST(Kernels, CausalSoftmaxForward) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    for (const std::int64_t first_visible : {std::int64_t{1}, std::max<std::int64_t>(1, columns - kRows + 1)}) {
      SCOPED_TRACE(columns);
      const std::int64_t rows = std::min(kRows, columns - first_visible + 1);
      const std::int64_t stride = columns + 3;
      const std::vector<Real> scores = numbers<Real>(rows * stride, 1);
      std::vector<double> expected(scores.begin(), scores.end());
      for (std::int64_t row = 0; row < rows; ++row) {
        double* const x = expected.data() + row * stride;
        double total = 0;
        for (std::int64_t i = 0; i < columns; ++i) {
          x[i] = i < first_visible + row ? std::exp(x[i]) : 0;
          total += x[i];
        }
        for (std::int64_t i = 0; i < columns; ++i) {
          x[i] /= total;
        }
      }
      on_every_team(
          scores, rows,
          [&](std::vector<Real>& own) {
            return CausalSoftmaxForward<Real>{
                .columns = columns, .stride = stride, .first_visible = first_visible, .scores = own.data()};
          },
          [&](const std::vector<Real>& own) { expect_close(own, expected, 8, "probabilities"); });
    }
  }
}

TYPED_TEST(Kernels, CausalSoftmaxOfLargeScores) {
  using Real = TypeParam;
  // Whatever stands in hidden places, infinities included, must not matter.
  const Real infinity = std::numeric_limits<Real>::infinity();
  const std::vector<Real> scores{Real(3e4), Real(-3e4), infinity, Real(1)};
  on_every_team(
      scores, 1,
      [&](std::vector<Real>& own) {
        return CausalSoftmaxForward<Real>{.columns = 4, .stride = 4, .first_visible = 2, .scores = own.data()};
      },
      [&](const std::vector<Real>& own) {
        EXPECT_EQ(own, (std::vector<Real>{1, 0, 0, 0}));
      });
}

template <class Real>
struct SoftmaxBuffers {
  std::vector<Real> probabilities, gradients;
};

TYPED_TEST(Kernels, SoftmaxBackward) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    SCOPED_TRACE(columns);
    const SoftmaxBuffers<Real> buffers{.probabilities = numbers<Real>(kRows * (columns + 2), 1),
                                       .gradients = numbers<Real>(kRows * (columns + 1), 2)};
    std::vector<double> expected(buffers.gradients.begin(), buffers.gradients.end());
    for (std::int64_t row = 0; row < kRows; ++row) {
      const Real* const p = buffers.probabilities.data() + row * (columns + 2);
      double* const g = expected.data() + row * (columns + 1);
      double product = 0;
      for (std::int64_t i = 0; i < columns; ++i) {
        product += static_cast<double>(p[i]) * g[i];
      }
      for (std::int64_t i = 0; i < columns; ++i) {
        g[i] = static_cast<double>(p[i]) * (g[i] - product);
      }
    }
    on_every_team(
        buffers, kRows,
        [&](SoftmaxBuffers<Real>& b) {
          return SoftmaxBackward<Real>{.columns = columns,
                                       .probability_stride = columns + 2,
                                       .gradient_stride = columns + 1,
                                       .probabilities = b.probabilities.data(),
                                       .gradients = b.gradients.data()};
        },
        [&](const SoftmaxBuffers<Real>& b) { expect_close(b.gradients, expected, 64, "gradients"); });
  }
}

template <class Real>
struct LossBuffers {
  std::vector<Real> logits;
  std::vector<double> losses;
};

TYPED_TEST(Kernels, CrossEntropy) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    SCOPED_TRACE(columns);
    const double scale = 0.125;
    const std::vector<std::int32_t> targets{static_cast<std::int32_t>(columns - 1), -1,
                                            static_cast<std::int32_t>(columns / 2)};
    const LossBuffers<Real> buffers{.logits = numbers<Real>(kRows * columns, 1),
                                    .losses = std::vector<double>(kRows, 5.0)};
    std::vector<double> gradients(buffers.logits.begin(), buffers.logits.end());
    std::vector<double> losses(kRows);
    for (std::size_t row = 0; row < kRows; ++row) {
      double* const x = gradients.data() + static_cast<std::int64_t>(row) * columns;
      double total = 0;
      for (std::int64_t i = 0; i < columns; ++i) {
        total += std::exp(x[i]);
      }
      losses[row] = targets[row] < 0 ? 0 : std::log(total) - x[targets[row]];
      for (std::int64_t i = 0; i < columns; ++i) {
        x[i] = targets[row] < 0 ? 0 : (std::exp(x[i]) / total - (i == targets[row] ? 1 : 0)) * scale;
      }
    }
    on_every_team(
        buffers, kRows,
        [&](LossBuffers<Real>& b) {
          return CrossEntropy<Real>{.columns = columns,
                                    .targets = targets.data(),
                                    .gradient_scale = static_cast<Real>(scale),
                                    .logits = b.logits.data(),
                                    .losses = b.losses.data()};
        },
        [&](const LossBuffers<Real>& b) {
          expect_close(b.logits, gradients, 4, "gradients");
          for (std::size_t row = 0; row < kRows; ++row) {
            EXPECT_NEAR(b.losses[row], losses[row], 16 * std::numeric_limits<Real>::epsilon()) << row;
          }
        });
  }
}

template <class Real>
struct RowBuffers {
  std::vector<Real> residual, bias, output;
};

TYPED_TEST(Kernels, ResidualBias) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    for (const bool with_residual : {false, true}) {
      SCOPED_TRACE(columns);
      const RowBuffers<Real> buffers{.residual = numbers<Real>(kRows * columns, 1),
                                     .bias = numbers<Real>(columns, 2),
                                     .output = numbers<Real>(kRows * columns, 3)};
      std::vector<double> expected;
      for (std::size_t i = 0; i < buffers.residual.size(); ++i) {
        expected.push_back(static_cast<double>(buffers.bias[i % static_cast<std::size_t>(columns)]) +
                           (with_residual ? static_cast<double>(buffers.residual[i]) : 0));
      }
      on_every_team(
          buffers, kRows,
          [&](RowBuffers<Real>& b) {
            return ResidualBias<Real>{.columns = columns,
                                      .residual = with_residual ? b.residual.data() : nullptr,
                                      .bias = b.bias.data(),
                                      .output = b.output.data()};
          },
          [&](const RowBuffers<Real>& b) { expect_close(b.output, expected, 1, "output"); });
    }
  }
}

TYPED_TEST(Kernels, ColumnSums) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    for (const bool add : {false, true}) {
      SCOPED_TRACE(columns);
      const RowBuffers<Real> buffers{
          .residual = numbers<Real>(kRows * columns, 1), .bias = {}, .output = numbers<Real>(columns, 2)};
      std::vector<double> expected(static_cast<std::size_t>(columns));
      for (std::size_t i = 0; i < buffers.residual.size(); ++i) {
        expected[i % expected.size()] += static_cast<double>(buffers.residual[i]);
      }
      if (add) {
        expected = sum_of(expected, buffers.output);
      }
      const auto make = [&](RowBuffers<Real>& b) {
        return ColumnSums<Real>{.rows = kRows,
                                .columns = columns,
                                .input = b.residual.data(),
                                .output = b.output.data(),
                                .accumulate_output = add};
      };
      RowBuffers<Real> sizing = buffers;
      on_every_team(buffers, make(sizing).tiles(), make,
                    [&](const RowBuffers<Real>& b) { expect_close(b.output, expected, 4, "sums"); });
    }
  }
}

template <class Real>
struct EmbeddingBuffers {
  std::vector<Real> token_table, position_table, rows;
};

// Two sequences of three tokens; token 4 three times.
constexpr std::int64_t kSequence = 3;
const std::vector<std::int32_t> kTokens{4, 0, 4, 2, 4, 1};

TYPED_TEST(Kernels, Embedding) {
  using Real = TypeParam;
  for (const std::int64_t columns : kColumns) {
    SCOPED_TRACE(columns);
    const EmbeddingBuffers<Real> buffers{.token_table = numbers<Real>(5 * columns, 1),
                                         .position_table = numbers<Real>(kSequence * columns, 2),
                                         .rows = numbers<Real>(std::ssize(kTokens) * columns, 3)};
    std::vector<double> sums;
    std::vector<double> token_gradient(buffers.token_table.begin(), buffers.token_table.end());
    std::vector<double> position_gradient(buffers.position_table.begin(), buffers.position_table.end());
    for (std::size_t row = 0; row < kTokens.size(); ++row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto token = static_cast<std::size_t>(kTokens[row] * columns + i);
        const auto position = static_cast<std::size_t>(static_cast<std::int64_t>(row) % kSequence * columns + i);
        sums.push_back(static_cast<double>(buffers.token_table[token]) +
                       static_cast<double>(buffers.position_table[position]));
        const auto gradient =
            static_cast<double>(buffers.rows[row * static_cast<std::size_t>(columns) + static_cast<std::size_t>(i)]);
        token_gradient[token] += gradient;
        position_gradient[position] += gradient;
      }
    }
    on_every_team(
        buffers, std::ssize(kTokens),
        [&](EmbeddingBuffers<Real>& b) {
          return EmbeddingForward<Real>{.columns = columns,
                                        .sequence = kSequence,
                                        .tokens = kTokens.data(),
                                        .token_table = b.token_table.data(),
                                        .position_table = b.position_table.data(),
                                        .output = b.rows.data()};
        },
        [&](const EmbeddingBuffers<Real>& b) { expect_close(b.rows, sums, 1, "output"); });
    const auto make = [&](EmbeddingBuffers<Real>& b) {
      return EmbeddingBackward<Real>{.rows = std::ssize(kTokens),
                                     .columns = columns,
                                     .sequence = kSequence,
                                     .tokens = kTokens.data(),
                                     .output_gradient = b.rows.data(),
                                     .token_gradient = b.token_table.data(),
                                     .position_gradient = b.position_table.data()};
    };
    EmbeddingBuffers<Real> sizing = buffers;
    on_every_team(buffers, make(sizing).tiles(), make, [&](const EmbeddingBuffers<Real>& b) {
      expect_close(b.token_table, token_gradient, 4, "token gradient");
      expect_close(b.position_table, position_gradient, 4, "position gradient");
    });
  }
}

// Lengths around the chunk of the flat kernels.
constexpr std::int64_t kLengths[] = {1, 7, kChunk - 1, kChunk, kChunk + 5};

TYPED_TEST(Kernels, Scale) {
  using Real = TypeParam;
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE(length);
    const std::vector<Real> values = numbers<Real>(length, 1);
    std::vector<double> expected(values.begin(), values.end());
    for (double& value : expected) {
      value *= 0.375;
    }
    on_every_team(
        values, chunks_of(length),
        [&](std::vector<Real>& own) {
          return Scale<Real>{.elements = length, .factor = Real(0.375), .values = own.data()};
        },
        [&](const std::vector<Real>& own) { expect_close(own, expected, 1, "values"); });
  }
}

TYPED_TEST(Kernels, SumOfSquares) {
  using Real = TypeParam;
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE(length);
    const std::vector<Real> values = numbers<Real>(length, 1);
    double expected = 0;
    for (const Real value : values) {
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    on_every_team(
        std::vector<double>(static_cast<std::size_t>(chunks_of(length)), -1.0), chunks_of(length),
        [&](std::vector<double>& sums) {
          return SumOfSquares<Real>{.elements = length, .values = values.data(), .sums = sums.data()};
        },
        [&](const std::vector<double>& sums) {
          double total = 0;
          for (const double sum : sums) {
            total += sum;
          }
          EXPECT_NEAR(total / expected, 1, 1e-13);
        });
  }
}

template <class Real>
struct UpdateBuffers {
  std::vector<Real> parameters, gradient, moment1, moment2;
  explicit UpdateBuffers(std::int64_t length)
      : parameters(numbers<Real>(length, 1)),
        gradient(numbers<Real>(length, 2)),
        moment1(numbers<Real>(length, 3)),
        moment2(numbers<Real>(length, 4)) {
    for (Real& value : moment2) {
      value *= value;
    }
  }
};

TYPED_TEST(Kernels, Sgd) {
  using Real = TypeParam;
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE(length);
    const UpdateBuffers<Real> buffers(length);
    std::vector<double> expected;
    for (std::size_t i = 0; i < buffers.parameters.size(); ++i) {
      const auto p = static_cast<double>(buffers.parameters[i]);
      expected.push_back(p - 0.25 * (0.5 * static_cast<double>(buffers.gradient[i]) + 0.125 * p));
    }
    on_every_team(
        buffers, chunks_of(length),
        [&](UpdateBuffers<Real>& b) {
          return Sgd<Real>{.elements = length,
                           .learning_rate = Real(0.25),
                           .decay = Real(0.125),
                           .gradient_scale = Real(0.5),
                           .parameters = b.parameters.data(),
                           .gradient = b.gradient.data()};
        },
        [&](const UpdateBuffers<Real>& b) { expect_close(b.parameters, expected, 4, "parameters"); });
  }
}

TYPED_TEST(Kernels, AdamW) {
  using Real = TypeParam;
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE(length);
    const UpdateBuffers<Real> buffers(length);
    std::vector<double> parameters;
    std::vector<double> moment1;
    std::vector<double> moment2;
    for (std::size_t i = 0; i < buffers.parameters.size(); ++i) {
      const double g = 0.5 * static_cast<double>(buffers.gradient[i]);
      moment1.push_back(0.75 * static_cast<double>(buffers.moment1[i]) + 0.25 * g);
      moment2.push_back(0.875 * static_cast<double>(buffers.moment2[i]) + 0.125 * g * g);
      parameters.push_back(0.9375 * static_cast<double>(buffers.parameters[i]) -
                           0.03125 * moment1.back() / (std::sqrt(moment2.back()) / 0.5 + 0.0625));
    }
    on_every_team(
        buffers, chunks_of(length),
        [&](UpdateBuffers<Real>& b) {
          return AdamW<Real>{.elements = length,
                             .keep = Real(0.9375),
                             .one_minus_beta1 = Real(0.25),
                             .beta2 = Real(0.875),
                             .one_minus_beta2 = Real(0.125),
                             .step_size = Real(0.03125),
                             .root_correction2 = Real(0.5),
                             .epsilon = Real(0.0625),
                             .gradient_scale = Real(0.5),
                             .parameters = b.parameters.data(),
                             .gradient = b.gradient.data(),
                             .moment1 = b.moment1.data(),
                             .moment2 = b.moment2.data()};
        },
        [&](const UpdateBuffers<Real>& b) {
          expect_close(b.moment1, moment1, 4, "moment1");
          expect_close(b.moment2, moment2, 4, "moment2");
          expect_close(b.parameters, parameters, 8, "parameters");
        });
  }
}

// Every finite float's exponential would take a minute; a step of a prime number of floats takes a moment.
template <int V>
void expect_exponential_within_two_ulp() {
  for (std::uint32_t bits = 0; bits < 0x42D00000; bits += 7919) {  // up to 104
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      float x = 0;
      const std::uint32_t signed_bits = bits | sign;
      std::memcpy(&x, &signed_bits, sizeof x);
      const float actual = exponential(Pack<float, V>(x))[V - 1];
      const double exact = std::exp(static_cast<double>(x));
      if (exact > static_cast<double>(std::numeric_limits<float>::max())) {
        ASSERT_EQ(actual, std::numeric_limits<float>::infinity()) << x;
        continue;
      }
      const auto nearest = static_cast<float>(exact);
      const float above = std::nextafter(nearest, std::numeric_limits<float>::infinity());
      const double ulp = static_cast<double>(above) - static_cast<double>(nearest);
      ASSERT_LE(std::abs(static_cast<double>(actual) - exact), 2 * ulp) << x;
    }
  }
}

TEST(Exponential, WithinTwoUlpOverTheWholeRange) {
  expect_exponential_within_two_ulp<1>();
  expect_exponential_within_two_ulp<4>();
}

TEST(Exponential, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exponential(Pack<float, 1>(0.0F))[0], 1.0F);
  EXPECT_EQ(exponential(Pack<float, 1>(-infinity))[0], 0.0F);
  EXPECT_EQ(exponential(Pack<float, 1>(-1e30F))[0], 0.0F);
  EXPECT_EQ(exponential(Pack<float, 1>(infinity))[0], infinity);
  EXPECT_TRUE(std::isnan(exponential(Pack<float, 1>(std::nanf("")))[0]));
}

TYPED_TEST(Kernels, MatrixProducts) {
  using Real = TypeParam;
  const std::int64_t rows = 5;
  const std::int64_t out = 7;
  const std::int64_t in = 3;
  const std::vector<Real> x = numbers<Real>(rows * in, 1);
  const std::vector<Real> w = numbers<Real>(out * in, 2);
  const std::vector<Real> y = numbers<Real>(rows * out, 3);
  std::vector<double> forward(static_cast<std::size_t>(rows * out));
  std::vector<double> dx(static_cast<std::size_t>(rows * in));
  std::vector<double> dw(w.begin(), w.end());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        const auto at_x = static_cast<std::size_t>(row * in + i);
        const auto at_w = static_cast<std::size_t>(o * in + i);
        const auto at_y = static_cast<std::size_t>(row * out + o);
        forward[at_y] += static_cast<double>(x[at_x]) * static_cast<double>(w[at_w]);
        dx[at_x] += static_cast<double>(y[at_y]) * static_cast<double>(w[at_w]);
        dw[at_w] += static_cast<double>(y[at_y]) * static_cast<double>(x[at_x]);
      }
    }
  }
  std::vector<Real> result(y.size(), std::numeric_limits<Real>::quiet_NaN());
  multiply_forward(rows, out, in, x.data(), w.data(), Real(0), result.data());
  expect_close(result, forward, 8, "forward");
  result = y;
  multiply_forward(rows, out, in, x.data(), w.data(), Real(1), result.data());
  expect_close(result, sum_of(forward, y), 8, "forward, added");
  result.resize(x.size());
  multiply_input_gradient(rows, out, in, y.data(), w.data(), result.data());
  expect_close(result, dx, 8, "input gradient");
  result = w;
  multiply_weight_gradient(rows, out, in, y.data(), x.data(), true, result.data());
  expect_close(result, dw, 8, "weight gradient, added");
}

#ifndef __SANITIZE_THREAD__  // which does not know the barriers of the OpenMP library
// Rows are independent: threads change nothing, not a bit.
TYPED_TEST(Kernels, ThreadsChangeNoBit) {
  using Real = TypeParam;
  const std::int64_t length = 5 * kChunk + 3;
  const UpdateBuffers<Real> buffers(length);
  std::vector<double> sums(static_cast<std::size_t>(chunks_of(length)));
  const SumOfSquares<Real> kernel{.elements = length, .values = buffers.gradient.data(), .sums = sums.data()};
  launch_rows(kernel, chunks_of(length), 1);
  const std::vector<double> alone = sums;
  std::fill(sums.begin(), sums.end(), 0.0);
  launch_rows(kernel, chunks_of(length), 3);
  EXPECT_EQ(sums, alone);
}
#endif

}  // namespace
}  // namespace lamina::kernels
