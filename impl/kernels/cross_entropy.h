// Cross-entropy of rows of logits, forward and backward in one pass over the row.
#pragma once

#include "impl/kernels/team.h"

namespace lamina::kernels {

// losses[row] = log(sum(e^x)) - x[target], and the logits become their gradients, (softmax - one at the target) ·
// gradient_scale. A row whose target is negative is not counted: loss 0, gradients 0.
template <class Real>
struct CrossEntropy {
  using Arithmetic = Real;
  std::int64_t columns;
  const std::int32_t* targets;  // [rows]
  Arithmetic gradient_scale;
  Real* logits;    // [rows, columns]
  double* losses;  // [rows]

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t row) const {
    using A = Arithmetic;
    Real* const values_row = logits + row * columns;
    const std::int64_t target = targets[row];
    if (target < 0) {
      team.template each_pack<V>(columns, [&](auto at) { store(at, values_row, Pack<A, decltype(at)::width>(A(0))); });
      if (team.leads()) {
        losses[row] = 0;
      }
      return;
    }
    // Read before the reduction, whose barrier holds back whoever overwrites it.
    const A target_logit = static_cast<A>(values_row[target]);
    Pack<A, V> largest(-kInfinity<A>);
    team.template each_pack<V>(columns, [&](auto at) { accumulate_maximum(largest, load<A>(at, values_row)); });
    const A row_maximum = team.maximum(largest);
    Pack<A, V> weights(A(0));
    team.template each_pack<V>(columns, [&](auto at) {
      const auto weight = exponential(load<A>(at, values_row) - row_maximum);
      accumulate(weights, weight);
      store(at, values_row, weight);
    });
    const A total = team.sum(weights);
    const A scale = gradient_scale / total;
    team.template each_pack<V>(columns, [&](auto at) {
      auto gradient = load<A>(at, values_row) * scale;
      const std::int64_t lane = target - at.index;
      if (lane >= 0 && lane < decltype(at)::width) {
        gradient.set(static_cast<int>(lane), gradient[static_cast<int>(lane)] - gradient_scale);
      }
      store(at, values_row, gradient);
    });
    if (team.leads()) {
      losses[row] =
          ::log(static_cast<double>(total)) + static_cast<double>(row_maximum) - static_cast<double>(target_logit);
    }
  }
};

}  // namespace lamina::kernels
