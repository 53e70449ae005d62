#include "impl/model/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "impl/kernels/launch.h"
#include "impl/kernels/update.h"

namespace lamina {
namespace {

using kernels::chunks_of;
using kernels::launch_rows;

template <class Real>
kernels::AdamW<Real> adamw(const OptimizerConfig& config, bool decays, std::int64_t step, double gradient_scale) {
  const double decay = decays ? config.weight_decay : 0.0;
  const double correction1 = 1 - std::pow(config.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(config.beta2, static_cast<double>(step));
  return {.elements = 0,
          .keep = static_cast<Real>(1 - config.learning_rate * decay),
          .one_minus_beta1 = static_cast<Real>(1 - config.beta1),
          .beta2 = static_cast<Real>(config.beta2),
          .one_minus_beta2 = static_cast<Real>(1 - config.beta2),
          .step_size = static_cast<Real>(config.learning_rate / correction1),
          .root_correction2 = static_cast<Real>(std::sqrt(correction2)),
          .epsilon = static_cast<Real>(config.epsilon),
          .gradient_scale = static_cast<Real>(gradient_scale),
          .parameters = nullptr,
          .gradient = nullptr,
          .moment1 = nullptr,
          .moment2 = nullptr};
}

template <class Real>
kernels::Sgd<Real> sgd(const OptimizerConfig& config, bool decays, double gradient_scale) {
  return {.elements = 0,
          .learning_rate = static_cast<Real>(config.learning_rate),
          .decay = static_cast<Real>(decays ? config.weight_decay : 0.0),
          .gradient_scale = static_cast<Real>(gradient_scale),
          .parameters = nullptr,
          .gradient = nullptr};
}

}  // namespace

template <class Real>
void update_range(const OptimizerConfig& config, std::span<const TensorLayout> layout, std::int64_t begin,
                  std::int64_t end, std::int64_t step, double gradient_scale, Real* parameters, const Real* gradient,
                  Real* moment1, Real* moment2, int threads) {
  for (const TensorLayout& tensor : layout) {
    const std::int64_t first = std::max(begin, tensor.offset);
    const std::int64_t elements = std::min(end, tensor.offset + tensor.elements) - first;
    if (elements <= 0) {
      continue;
    }
    const std::int64_t at = first - begin;
    if (config.kind == OptimizerConfig::Kind::adamw) {
      kernels::AdamW<Real> update = adamw<Real>(config, tensor.decays(), step, gradient_scale);
      update.elements = elements;
      update.parameters = parameters + at;
      update.gradient = gradient + at;
      update.moment1 = moment1 + at;
      update.moment2 = moment2 + at;
      launch_rows(update, chunks_of(elements), threads);
    } else {
      kernels::Sgd<Real> update = sgd<Real>(config, tensor.decays(), gradient_scale);
      update.elements = elements;
      update.parameters = parameters + at;
      update.gradient = gradient + at;
      launch_rows(update, chunks_of(elements), threads);
    }
  }
}

template <class Real>
double sum_of_squares(const Real* values, std::int64_t count, int threads) {
  // Chunk sums are added in their order, so that the result does not depend on the number of threads.
  constexpr std::int64_t kChunksAtOnce = 64;
  std::array<double, kChunksAtOnce> sums;
  double total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kChunksAtOnce * kernels::kChunk) {
    const std::int64_t elements = std::min(count - begin, kChunksAtOnce * kernels::kChunk);
    const std::int64_t chunks = chunks_of(elements);
    launch_rows(kernels::SumOfSquares<Real>{.elements = elements, .values = values + begin, .sums = sums.data()},
                chunks, threads);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      total += sums[static_cast<std::size_t>(chunk)];
    }
  }
  return total;
}

template void update_range(const OptimizerConfig&, std::span<const TensorLayout>, std::int64_t, std::int64_t,
                           std::int64_t, double, float*, const float*, float*, float*, int);
template void update_range(const OptimizerConfig&, std::span<const TensorLayout>, std::int64_t, std::int64_t,
                           std::int64_t, double, double*, const double*, double*, double*, int);
template double sum_of_squares(const float*, std::int64_t, int);
template double sum_of_squares(const double*, std::int64_t, int);

}  // namespace lamina
