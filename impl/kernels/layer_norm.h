// Layer norm over rows of `columns` elements: y = (x - mean) · rstd · weight + bias, rstd = 1 / sqrt(variance + 1e-5).
#pragma once

#include "impl/kernels/team.h"

namespace lamina::kernels {

template <class Real>
struct LayerNormForward {
  using Arithmetic = Real;
  std::int64_t columns;
  const Real* input;   // [rows, columns]
  const Real* weight;  // [columns]
  const Real* bias;    // [columns]
  Real* output;        // [rows, columns]
  Arithmetic* mean;    // [rows]
  Arithmetic* rstd;    // [rows]

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const Real* const x_row = input + row * columns;
    Real* const y_row = output + row * columns;
    const auto x = team.template keep<V>(columns, [=](auto at) { return load<A>(at, x_row); });
    Pack<A, V> total(A(0));
    x.each([&](auto, auto values) { accumulate(total, values); });
    const A row_mean = team.sum(total) / static_cast<A>(columns);
    Pack<A, V> squares(A(0));
    x.each([&](auto, auto values) {
      const auto centred = values - row_mean;
      accumulate(squares, centred * centred);
    });
    const A variance = team.sum(squares) / static_cast<A>(columns);
    const A row_rstd = A(1) / square_root(Pack<A, 1>(variance + static_cast<A>(1e-5)))[0];
    x.each([&](auto at, auto values) {
      store(at, y_row, (values - row_mean) * row_rstd * load<A>(at, weight) + load<A>(at, bias));
    });
    if (team.leads()) {
      mean[row] = row_mean;
      rstd[row] = row_rstd;
    }
  }
};

// With g = dy · weight and n = (x - mean) · rstd: dx = rstd · (g - mean(g) - n · mean(g · n)).
// Adds dx to input_gradient, or replaces it, where output_gradient may be the same memory. Also writes the forward
// output again, which the gradient of the following product needs and nobody kept.
template <class Real>
struct LayerNormBackward {
  using Arithmetic = Real;
  std::int64_t columns;
  const Real* input;
  const Real* weight;
  const Real* bias;
  const Arithmetic* mean;
  const Arithmetic* rstd;
  const Real* output_gradient;
  Real* input_gradient;
  Real* output;  // the forward output; null: not wanted
  bool add_to_input_gradient;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const Real* const x_row = input + row * columns;
    const Real* const dy_row = output_gradient + row * columns;
    Real* const dx_row = input_gradient + row * columns;
    const A row_mean = mean[row];
    const A row_rstd = rstd[row];
    const auto normal =
        team.template keep<V>(columns, [=](auto at) { return (load<A>(at, x_row) - row_mean) * row_rstd; });
    const Real* const w = weight;
    const auto weighted = [=](auto at) { return load<A>(at, dy_row) * load<A>(at, w); };
    Pack<A, V> gradients(A(0));
    Pack<A, V> products(A(0));
    normal.each([&](auto at, auto n) {
      const auto g = weighted(at);
      accumulate(gradients, g);
      accumulate(products, g * n);
    });
    const A mean_gradient = team.sum(gradients) / static_cast<A>(columns);
    const A mean_product = team.sum(products) / static_cast<A>(columns);
    normal.each([&](auto at, auto n) {
      auto dx = (weighted(at) - mean_gradient - n * mean_product) * row_rstd;
      if (add_to_input_gradient) {
        dx = dx + load<A>(at, dx_row);
      }
      store(at, dx_row, dx);
      if (output != nullptr) {
        store(at, output + row * columns, n * load<A>(at, weight) + load<A>(at, bias));
      }
    });
  }
};

// Gradients of weight (sum over rows of dy · n) and bias (sum over rows of dy). Its "rows" are tiles of columns.
template <class Real>
struct LayerNormParameterGradient {
  using Arithmetic = Real;
  static constexpr std::int64_t kTile = 128;
  std::int64_t rows;
  std::int64_t columns;
  const Real* input;
  const Arithmetic* mean;
  const Arithmetic* rstd;
  const Real* output_gradient;
  Real* weight_gradient;
  Real* bias_gradient;
  bool accumulate_gradient;

  std::int64_t tiles() const { return (columns + kTile - 1) / kTile; }

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t tile) const {
    using A = Arithmetic;
    const std::int64_t first = tile * kTile;
    const std::int64_t count = columns - first < kTile ? columns - first : kTile;
    team.template each_pack<V * Team::packs_side_by_side>(count, [&](auto at) {
      using Values = Pack<A, decltype(at)::width>;
      Values dw(A(0));
      Values db(A(0));
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t start = row * columns + first;
        const Values dy = load<A>(at, output_gradient + start);
        dw = dw + dy * ((load<A>(at, input + start) - mean[row]) * rstd[row]);
        db = db + dy;
      }
      if (accumulate_gradient) {
        dw = dw + load<A>(at, weight_gradient + first);
        db = db + load<A>(at, bias_gradient + first);
      }
      store(at, weight_gradient + first, dw);
      store(at, bias_gradient + first, db);
    });
  }
};

}  // namespace lamina::kernels
