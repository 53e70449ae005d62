#include "impl/plan/plan.h"

#include "impl/base/error.h"

namespace lamina {

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "?";
}

std::int64_t micro_batches_of(const Batch& batch, std::int64_t data) {
  if (batch.global < 1 || batch.micro < 1) {
    throw UsageError(
        fmt::format("batch.global is {} and batch.micro {}; both must be at least 1", batch.global, batch.micro));
  }
  const std::int64_t unit = data * batch.micro;
  if (batch.global % unit != 0) {
    const std::int64_t above = (batch.global / unit + 1) * unit;
    const std::int64_t below = above - unit;
    const std::string nearest =
        below > 0 ? fmt::format("the nearest are {} and {}", below, above) : fmt::format("the nearest is {}", above);
    throw UsageError(fmt::format("batch.global is {}, not a multiple of {} (parallel.data {} x batch.micro {}); {}",
                                 batch.global, unit, data, batch.micro, nearest));
  }
  return batch.global / unit;
}

Coordinates coordinates_of(std::int64_t rank, const Parallel& parallel) {
  LAMINA_CHECK(rank >= 0 && rank < parallel.ranks(), "rank {} of {}", rank, parallel.ranks());
  return {.data = rank / parallel.tensor % parallel.data,
          .pipeline = rank / (parallel.tensor * parallel.data),
          .tensor = rank % parallel.tensor};
}

std::int64_t rank_of(const Coordinates& at, const Parallel& parallel) {
  return (at.pipeline * parallel.data + at.data) * parallel.tensor + at.tensor;
}

}  // namespace lamina
