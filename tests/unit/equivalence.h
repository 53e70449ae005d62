// What every plan is held to: the whole batch on one rank, without a schedule.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/model_single_rank.h"

namespace lamina::testing {

// Loss, norm and gradients of one step of `global_batch` sequences from `source` (samples 0 …), weights from `seed`.
struct Reference {
  double loss = 0;
  double gradient_norm = 0;
  std::map<Unit, std::vector<double>> gradients;
};

inline Reference reference_step(const ModelShape& shape, const TokenSource& source, std::int64_t global_batch,
                                std::int64_t seed) {
  SingleRank<double> rank(shape, 1, Recompute::none);
  rank.initialize(seed);
  Reference reference;
  reference.loss = rank.forward_backward(read_sequences(source, shape.sequence, global_batch));
  reference.gradient_norm = rank.gradient_norm();
  for (const auto& state : rank.units()) {
    reference.gradients[state.unit] = {state.gradient.begin(), state.gradient.end()};
  }
  return reference;
}

// The largest difference of a gradient's elements, relative to the largest element of its unit's gradient.
inline double distance(const std::map<Unit, std::vector<double>>& gradients,
                       const std::map<Unit, std::vector<double>>& reference) {
  double worst = gradients.size() == reference.size() ? 0.0 : INFINITY;
  for (const auto& [unit, wanted] : reference) {
    const auto found = gradients.find(unit);
    if (found == gradients.end() || found->second.size() != wanted.size()) {
      return INFINITY;
    }
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      largest = std::max(largest, std::abs(wanted[i]));
      const double off = std::abs(found->second[i] - wanted[i]);
      difference = off >= difference ? off : std::isnan(off) ? INFINITY : difference;
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

}  // namespace lamina::testing
