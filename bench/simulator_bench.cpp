// How many ops a second are scheduled and played by the simulator. Arguments: pipeline ranks, micro-batches. Items are
// ops over all ranks.
#include <benchmark/benchmark.h>

#include "impl/methods/methods.h"
#include "impl/schedule/verify.h"
#include "impl/simulator/simulate.h"

namespace {

using namespace lamina;

Plan plan_of(const benchmark::State& state) {
  const ModelShape shape{.layers = 24, .hidden = 512, .heads = 8, .sequence = 128, .vocabulary = 256};
  PlanRequest wish{.method = std::string(modular_pipeline.name), .zero_stage = 0};
  wish.parallel.pipeline = state.range(0);
  return resolve_plan(modular_pipeline, shape, {.global = state.range(1), .micro = 1}, wish, true);
}

std::int64_t ops_of(const Schedule& schedule) {
  std::int64_t ops = 0;
  for (const auto& program : schedule.programs) {
    ops += std::ssize(program.ops);
  }
  return ops;
}

void build_a_schedule(benchmark::State& state) {
  const Plan plan = plan_of(state);
  std::int64_t ops = 0;
  for (auto _ : state) {
    ops += ops_of(build_schedule(modular_pipeline, plan));
  }
  state.SetItemsProcessed(ops);
}

void verify_a_schedule(benchmark::State& state) {
  const Schedule schedule = build_schedule(modular_pipeline, plan_of(state));
  for (auto _ : state) {
    verify(schedule);
  }
  state.SetItemsProcessed(state.iterations() * ops_of(schedule));
}

void simulate_a_schedule(benchmark::State& state) {
  const Schedule schedule = build_schedule(modular_pipeline, plan_of(state));
  const OpCost cost = [](std::int32_t, const Op& op) { return op.stream == StreamKind::compute ? 1.0 : 0.1; };
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulate(schedule, cost).step_time_s);
  }
  state.SetItemsProcessed(state.iterations() * ops_of(schedule));
}

#define LAMINA_SIZES Args({4, 8})->Args({8, 32})->Unit(benchmark::kMillisecond)
BENCHMARK(build_a_schedule)->LAMINA_SIZES;
BENCHMARK(verify_a_schedule)->LAMINA_SIZES;
BENCHMARK(simulate_a_schedule)->LAMINA_SIZES;

}  // namespace

BENCHMARK_MAIN();
