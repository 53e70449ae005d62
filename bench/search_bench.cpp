// How many plans a second the search evaluates, and how long a full search takes.
#include <benchmark/benchmark.h>

#include "impl/analysis/search.h"

namespace {

using namespace lamina::analysis;

SearchOptions trillion_parameters() {
  SearchOptions options;
  options.setting.model = family_model(160);
  options.setting.rates = {.flops_per_s = 312e12, .tensor_bytes_per_s = 300e9, .network_bytes_per_s = 25e9};
  options.setting.critical_batch_tokens =
      critical_batch_tokens(BatchLaw::gpt3, total_parameters(options.setting.model));
  return options;
}

// Every plan that fits is evaluated: items are plans.
void search_without_pruning(benchmark::State& state) {
  SearchOptions options = trillion_parameters();
  options.prune = false;
  std::int64_t plans = 0;
  for (auto _ : state) {
    const SearchResult result = search(options);
    plans += result.counts.evaluated;
    benchmark::DoNotOptimize(result.tracks.data());
  }
  state.SetItemsProcessed(plans);
}
BENCHMARK(search_without_pruning)->Unit(benchmark::kMillisecond);

// The search as it is used, X_160 up to 100,000 GPUs: items are plans covered (evaluated, dominated or refused).
void search_with_pruning(benchmark::State& state) {
  const SearchOptions options = trillion_parameters();
  std::int64_t plans = 0;
  for (auto _ : state) {
    const SearchResult result = search(options);
    plans += result.counts.evaluated + result.counts.dominated + result.counts.memory;
    benchmark::DoNotOptimize(result.tracks.data());
  }
  state.SetItemsProcessed(plans);
}
BENCHMARK(search_with_pruning)->Unit(benchmark::kMillisecond);

// One plan with everything that a report says about it.
void cost_of_one_plan(benchmark::State& state) {
  const SearchOptions options = trillion_parameters();
  const StepPlan plan{
      .order = Order::modular, .data = 482, .pipeline = 5, .tensor = 16, .micro_batches = 5, .zero_stage = 3};
  for (auto _ : state) {
    benchmark::DoNotOptimize(cost_of(plan, options.setting).training_s);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(cost_of_one_plan);

}  // namespace

BENCHMARK_MAIN();
