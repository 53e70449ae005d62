// How a training step is split over ranks: what the user asks for (PlanRequest) and what it resolves to (Plan).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "impl/plan/model_shape.h"

namespace lamina {

struct Parallel {
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  bool operator==(const Parallel&) const = default;
  std::int64_t ranks() const { return data * pipeline * tensor; }
};

enum class Recompute : std::uint8_t { none, selective, full };
std::string_view name_of(Recompute recompute);

struct Batch {
  std::int64_t global = 0;  // sequences a step, over all data-parallel ranks
  std::int64_t micro = 1;   // sequences a micro-batch
};

// The keys of a run in a scenario. What is not given takes the method's default.
struct PlanRequest {
  std::string method;
  Parallel parallel;
  int zero_stage = 0;
  Recompute recompute = Recompute::none;
  std::optional<std::int64_t> groups;           // hybrid order: groups of micro-batches, each run layered
  std::optional<std::int64_t> chunks;           // interleaved pipelines: chunks of layers a rank
  std::optional<std::int64_t> prefetch_layers;  // how many units ahead of use a gather may start; default 1
  std::optional<std::int64_t> resident_layers;  // gathered layers that stay in memory; default 2
  bool keep_full_gradient = false;              // ZeRO-2 and 3, depth-first: reduce once a step, not once a visit
  bool operator==(const PlanRequest&) const = default;
};

struct Plan {
  ModelShape model;
  std::string method;
  Parallel parallel;
  int zero_stage = 0;
  Recompute recompute = Recompute::none;
  std::int64_t micro_batch_size = 1;  // b, sequences
  std::int64_t micro_batches = 1;     // m, a step and data-parallel rank
  std::int64_t groups = 1;            // n
  std::int64_t chunks = 1;            // v
  std::int64_t prefetch_layers = 1;
  std::int64_t resident_layers = 2;
  bool keep_full_gradient = false;
  bool update_after_norm = false;  // clipping or a loss scale: every update waits until the gradients' norm is known
  std::int64_t global_batch() const { return parallel.data * micro_batches * micro_batch_size; }
  bool operator==(const Plan&) const = default;
};

// Micro-batches a step and data-parallel rank. Throws UsageError with the numbers and the nearest valid global
// batches when the global batch is not a positive multiple of data · micro.
std::int64_t micro_batches_of(const Batch& batch, std::int64_t data);

// A rank's place. Ranks are numbered with tensor fastest, then data, then pipeline slowest.
struct Coordinates {
  std::int64_t data = 0;
  std::int64_t pipeline = 0;
  std::int64_t tensor = 0;
};
Coordinates coordinates_of(std::int64_t rank, const Parallel& parallel);
std::int64_t rank_of(const Coordinates& at, const Parallel& parallel);

// Elements a buffer of `elements` takes once padded to a multiple of `parts`, and the part's size.
constexpr std::int64_t padded(std::int64_t elements, std::int64_t parts) {
  return (elements + parts - 1) / parts * parts;
}

}  // namespace lamina
