// What a step works on exists before the first step: once training runs, the heap gives out no more than the small
// records of messages and closures. Every allocation of this program is looked at.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "impl/engine/train.h"
#include "tests/unit/schedule_cases.h"

namespace {

std::atomic<bool> watching = false;
std::atomic<std::size_t> largest = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (watching) {
    std::size_t seen = largest;
    while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
    }
  }
  void* const memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

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
