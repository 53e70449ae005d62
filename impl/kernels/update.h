// Kernels on flat arrays: optimizer updates, sum of squares, scaling. Their "rows" are chunks of kChunk elements.
#pragma once

#include "impl/kernels/team.h"

namespace lamina::kernels {

inline constexpr std::int64_t kChunk = 8192;
LAMINA_DEVICE std::int64_t chunks_of(std::int64_t elements) { return (elements + kChunk - 1) / kChunk; }
LAMINA_DEVICE std::int64_t elements_of_chunk(std::int64_t chunk, std::int64_t elements) {
  const std::int64_t left = elements - chunk * kChunk;
  return left < kChunk ? left : kChunk;
}

// values *= factor
template <class Real>
struct Scale {
  using Arithmetic = Real;
  std::int64_t elements;
  Arithmetic factor;
  Real* values;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t chunk) const {
    Real* const at_chunk = values + chunk * kChunk;
    team.template each_pack<V>(elements_of_chunk(chunk, elements),
                               [&](auto at) { store(at, at_chunk, load<Arithmetic>(at, at_chunk) * factor); });
  }
};

// sums[chunk] = sum of squares of the chunk, in double.
template <class Real>
struct SumOfSquares {
  using Arithmetic = double;
  std::int64_t elements;
  const Real* values;
  double* sums;  // [chunks]

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t chunk) const {
    const Real* const at_chunk = values + chunk * kChunk;
    Pack<double, V> total(0.0);
    team.template each_pack<V>(elements_of_chunk(chunk, elements), [&](auto at) {
      const auto value = load<double>(at, at_chunk);
      accumulate(total, value * value);
    });
    const double sum = team.sum(total);
    if (team.leads()) {
      sums[chunk] = sum;
    }
  }
};

// p -= learning_rate · (gradient_scale · g + decay · p)
template <class Real>
struct Sgd {
  using Arithmetic = Real;
  std::int64_t elements;
  Arithmetic learning_rate;
  Arithmetic decay;
  Arithmetic gradient_scale;
  Real* parameters;
  const Real* gradient;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t chunk) const {
    using A = Arithmetic;
    const std::int64_t start = chunk * kChunk;
    team.template each_pack<V>(elements_of_chunk(chunk, elements), [&](auto at) {
      const auto p = load<A>(at, parameters + start);
      const auto g = load<A>(at, gradient + start) * gradient_scale + p * decay;
      store(at, parameters + start, p - g * learning_rate);
    });
  }
};

// AdamW, in PyTorch's order of operations: p *= 1 - learning_rate · decay; m += (1 - beta1)(g - m);
// v = beta2 · v + (1 - beta2) g²; p -= step_size · m / (sqrt(v) / root_correction2 + epsilon).
template <class Real>
struct AdamW {
  using Arithmetic = Real;
  std::int64_t elements;
  Arithmetic keep;  // 1 - learning_rate · weight_decay
  Arithmetic one_minus_beta1;
  Arithmetic beta2;
  Arithmetic one_minus_beta2;
  Arithmetic step_size;         // learning_rate / (1 - beta1^step)
  Arithmetic root_correction2;  // sqrt(1 - beta2^step)
  Arithmetic epsilon;
  Arithmetic gradient_scale;
  Real* parameters;
  const Real* gradient;
  Real* moment1;
  Real* moment2;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t chunk) const {
    using A = Arithmetic;
    const std::int64_t start = chunk * kChunk;
    team.template each_pack<V>(elements_of_chunk(chunk, elements), [&](auto at) {
      const auto g = load<A>(at, gradient + start) * gradient_scale;
      auto m = load<A>(at, moment1 + start);
      auto v = load<A>(at, moment2 + start);
      m = m + (g - m) * one_minus_beta1;
      v = v * beta2 + g * g * one_minus_beta2;
      const auto denominator = square_root(v) / root_correction2 + epsilon;
      store(at, moment1 + start, m);
      store(at, moment2 + start, v);
      store(at, parameters + start, load<A>(at, parameters + start) * keep - m * step_size / denominator);
    });
  }
};

}  // namespace lamina::kernels
