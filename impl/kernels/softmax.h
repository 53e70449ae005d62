// Causal softmax over rows of attention scores, of which row r may see the first `first_visible` + r columns.
#pragma once

#include "impl/kernels/team.h"

namespace lamina::kernels {

// In place: scores become probabilities, 0 where the row may not see.
template <class Real>
struct CausalSoftmaxForward {
  using Arithmetic = Real;
  std::int64_t columns;
  std::int64_t stride;         // elements from one row to the next
  std::int64_t first_visible;  // columns that row 0 sees; at least 1, and no row sees more than `columns`
  Real* scores;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const std::int64_t visible = first_visible + row;
    // Up to a whole pack's end, so that a row's length rarely costs narrow packs; the lanes beyond count for nothing.
    const std::int64_t rounded = (visible + V - 1) / V * V;
    const std::int64_t covered = rounded < columns ? rounded : columns;
    Real* const values_row = scores + row * stride;
    constexpr A kHidden = -kInfinity<A>;
    const auto x = team.template keep<V>(
        covered, [=](auto at) { return keep_below(at, visible, load<A>(at, values_row), kHidden); });
    Pack<A, V> largest(kHidden);
    x.each([&](auto, auto values) { accumulate_maximum(largest, values); });
    const A row_maximum = team.maximum(largest);
    Pack<A, V> total(A(0));
    x.each([&](auto at, auto values) {
      const auto weight = exponential(values - row_maximum);
      accumulate(total, weight);
      store(at, values_row, weight);
    });
    const A scale = A(1) / team.sum(total);
    team.template each_pack<V>(covered, [&](auto at) { store(at, values_row, load<A>(at, values_row) * scale); });
    Real* const hidden_row = values_row + covered;
    team.template each_pack<V>(columns - covered,
                               [&](auto at) { store(at, hidden_row, Pack<A, decltype(at)::width>(A(0))); });
  }
};

// In place: gradients of the probabilities become gradients of the scores, p · (dp - sum(p · dp)).
template <class Real>
struct SoftmaxBackward {
  using Arithmetic = Real;
  std::int64_t columns;
  std::int64_t probability_stride;
  std::int64_t gradient_stride;
  const Real* probabilities;
  Real* gradients;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const Real* const p_row = probabilities + row * probability_stride;
    Real* const g_row = gradients + row * gradient_stride;
    Pack<A, V> products(A(0));
    team.template each_pack<V>(columns,
                               [&](auto at) { accumulate(products, load<A>(at, p_row) * load<A>(at, g_row)); });
    const A product = team.sum(products);
    team.template each_pack<V>(columns,
                               [&](auto at) { store(at, g_row, load<A>(at, p_row) * (load<A>(at, g_row) - product)); });
  }
};

}  // namespace lamina::kernels
