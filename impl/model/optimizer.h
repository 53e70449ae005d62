// SGD and AdamW on a range of a unit's flat buffer, so that a rank may update the whole unit or its shard of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "impl/plan/model_shape.h"

namespace lamina {

struct OptimizerConfig {
  enum class Kind : std::uint8_t { sgd, adamw } kind = Kind::sgd;
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;  // decoupled; only on tensors of two or more dimensions
  double clip_norm = 0;     // 0: no clipping
};

// Moments kept per parameter: 2 for AdamW, 0 for SGD.
constexpr int moments_of(OptimizerConfig::Kind kind) { return kind == OptimizerConfig::Kind::adamw ? 2 : 0; }

// Updates elements [begin, end) of a unit. parameters, gradient and the moments point at element `begin`. `step`
// counts from 1 (bias correction). gradient_scale multiplies the gradient first (clipping). Elements beyond the
// layout's last tensor are padding and are not touched.
//   SGD: p -= lr·(g + weight_decay·p on decayed tensors). AdamW: p -= lr·weight_decay·p; then the Adam step
//   (arXiv 1711.05101, with PyTorch's order of operations).
template <class Real>
void update_range(const OptimizerConfig& config, std::span<const TensorLayout> layout, std::int64_t begin,
                  std::int64_t end, std::int64_t step, double gradient_scale, Real* parameters, const Real* gradient,
                  Real* moment1, Real* moment2, int threads);

// Sum of squares of [begin, end) without the padding beyond `elements`, accumulated in double.
template <class Real>
double sum_of_squares(const Real* values, std::int64_t count, int threads);

}  // namespace lamina
