// The simple kernels on rows and columns: biases, residuals, sums over rows, embeddings.
#pragma once

#include "impl/kernels/team.h"

namespace lamina::kernels {

// output = bias, or residual + bias: what a product is then added to.
template <class Real>
struct ResidualBias {
  using Arithmetic = Real;
  std::int64_t columns;
  const Real* residual;  // [rows, columns], or null
  const Real* bias;      // [columns]
  Real* output;          // [rows, columns]

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const std::int64_t start = row * columns;
    team.template each_pack<V>(columns, [&](auto at) {
      auto value = load<A>(at, bias);
      if (residual != nullptr) {
        value = value + load<A>(at, residual + start);
      }
      store(at, output + start, value);
    });
  }
};

// output[column] (+)= sum over rows. Its "rows" are tiles of columns.
template <class Real>
struct ColumnSums {
  using Arithmetic = Real;
  static constexpr std::int64_t kTile = 128;
  std::int64_t rows;
  std::int64_t columns;
  const Real* input;  // [rows, columns]
  Real* output;       // [columns]
  bool accumulate_output;

  std::int64_t tiles() const { return (columns + kTile - 1) / kTile; }

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t tile) const {
    using A = Arithmetic;
    const std::int64_t first = tile * kTile;
    const std::int64_t count = columns - first < kTile ? columns - first : kTile;
    team.template each_pack<V * Team::packs_side_by_side>(count, [&](auto at) {
      Pack<A, decltype(at)::width> total(A(0));
      for (std::int64_t row = 0; row < rows; ++row) {
        total = total + load<A>(at, input + row * columns + first);
      }
      if (accumulate_output) {
        total = total + load<A>(at, output + first);
      }
      store(at, output + first, total);
    });
  }
};

// output[row] = token_table[tokens[row]] + position_table[row mod sequence].
template <class Real>
struct EmbeddingForward {
  using Arithmetic = Real;
  std::int64_t columns;
  std::int64_t sequence;
  const std::int32_t* tokens;  // [rows]
  const Real* token_table;     // [vocabulary, columns]
  const Real* position_table;  // [sequence, columns]
  Real* output;                // [rows, columns]

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    const Real* const token = token_table + tokens[row] * columns;
    const Real* const position = position_table + row % sequence * columns;
    team.template each_pack<V>(
        columns, [&](auto at) { store(at, output + row * columns, load<A>(at, token) + load<A>(at, position)); });
  }
};

// Adds the rows of output_gradient to the rows of both tables' gradients. Its "rows" are tiles of columns, in each of
// which a worker adds row after row: repeated tokens meet in the same order every time.
template <class Real>
struct EmbeddingBackward {
  using Arithmetic = Real;
  static constexpr std::int64_t kTile = 128;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t sequence;
  const std::int32_t* tokens;
  const Real* output_gradient;
  Real* token_gradient;
  Real* position_gradient;

  std::int64_t tiles() const { return (columns + kTile - 1) / kTile; }

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t tile) const {
    using A = Arithmetic;
    const std::int64_t first = tile * kTile;
    const std::int64_t count = columns - first < kTile ? columns - first : kTile;
    for (std::int64_t row = 0; row < rows; ++row) {
      Real* const token = token_gradient + tokens[row] * columns + first;
      Real* const position = position_gradient + row % sequence * columns + first;
      team.template each_pack<V>(count, [&](auto at) {
        const auto gradient = load<A>(at, output_gradient + row * columns + first);
        store(at, token, load<A>(at, token) + gradient);
        store(at, position, load<A>(at, position) + gradient);
      });
    }
  }
};

}  // namespace lamina::kernels
