// What a step works on exists before the first step: once training runs, the heap gives out no more than the small
// records of messages and closures. Every allocation of this program and its libraries is looked at: the C library's
// functions, by which operator new allocates too, are replaced by ones that look and pass on.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "impl/engine/train.h"
#include "tests/unit/schedule_cases.h"

namespace {

std::atomic<bool> watching = false;
std::atomic<std::size_t> largest = 0;

void look_at(std::size_t bytes) {
  if (watching) {
    std::size_t seen = largest;
    while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
    }
  }
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  look_at(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  look_at(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  look_at(bytes);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  look_at(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  look_at(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace lamina {
namespace {

// The smallest thing a step could be tempted to allocate, an activation of one micro-batch in 16 bits, has 2048 bytes.
constexpr ModelShape kShape{.layers = 0, .hidden = 32, .heads = 2, .sequence = 32, .vocabulary = 64};
constexpr std::size_t kRecord = 1024;  // bytes of a closure, a message's state, a queue's next piece

std::size_t largest_in_later_steps(const ScheduleCase& c, const Precision& precision) {
  TrainRequest request;
  request.schedule = build_schedule(method_named(c.method), plan_of(c, kShape));
  request.precision = precision;
  request.optimizer = {.kind = OptimizerConfig::Kind::adamw, .learning_rate = 1e-3};
  request.data = {.kind = DataConfig::Kind::synthetic, .path = "", .seed = 2};
  request.measured_steps = 5;
  largest = 0;
  train(request, [](std::int64_t step, const StepRecord&) {
    watching = step >= 0 && step < 3;  // from the end of the first step to the end of the last but one
  });
  return largest;
}

TEST(StepAllocation, IsOfSmallRecordsAlone) {
  const std::vector<ScheduleCase> cases{
      {.method = "data_parallel", .layers = 3, .micro_batches = 3, .data = 2, .zero_stage = 2},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = 2, .zero_stage = 3},
      {.method = "gpipe", .layers = 4, .micro_batches = 3, .pipeline = 2, .recompute = Recompute::full},
      {.method = "one_f_one_b", .layers = 5, .micro_batches = 4, .pipeline = 2, .recompute = Recompute::selective},
      {.method = "interleaved_one_f_one_b", .layers = 4, .micro_batches = 4, .pipeline = 2, .chunks = 2},
      {.method = "modular_pipeline", .layers = 5, .micro_batches = 4, .data = 2, .pipeline = 2, .zero_stage = 3},
  };
  for (const ScheduleCase& c : cases) {
    for (const RealType type : {RealType::fp64, RealType::fp32, RealType::bf16}) {
      EXPECT_LE(largest_in_later_steps(c, precision_of(type)), kRecord) << to_string(c) << " in " << name_of(type);
      EXPECT_GT(largest, 0) << "nothing was looked at";
    }
  }
}

}  // namespace
}  // namespace lamina
