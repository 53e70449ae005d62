// Ring collectives over `threads`: ranks as threads of this process, no emulated link, so that what is measured is the
// transport's own cost and the machine's memory. One iteration is one collective on all ranks. Arguments: ranks, bytes.
// Bytes a second are of the whole buffer ("algorithm bandwidth").
#include <benchmark/benchmark.h>

#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "impl/comm/collectives.h"
#include "impl/comm/threads.h"

namespace {

using namespace lamina;

using Collective = void (*)(Communicator&, std::span<float>, TrafficTag);

void collective(benchmark::State& state, Collective call) {
  const int ranks = static_cast<int>(state.range(0));
  const auto elements = static_cast<std::size_t>(state.range(1)) / sizeof(float);
  ThreadsFabric fabric(ranks, {});
  std::barrier starts(ranks);
  std::barrier ends(ranks);
  bool more = true;
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) {
    members.push_back(rank);
  }
  const auto take_part = [&](Communicator& group, std::vector<float>& values) {
    starts.arrive_and_wait();
    if (!more) {
      return false;
    }
    call(group, values, {});
    ends.arrive_and_wait();
    return true;
  };
  std::vector<std::jthread> others;
  for (int rank = 1; rank < ranks; ++rank) {
    others.emplace_back([&, rank] {
      const auto group = fabric.endpoint(rank).group(members);
      std::vector<float> values(elements, 1e-3F);
      while (take_part(*group, values)) {
      }
    });
  }
  const auto group = fabric.endpoint(0).group(members);
  std::vector<float> values(elements, 1e-3F);
  for (auto _ : state) {
    take_part(*group, values);
    std::fill(values.begin(), values.begin() + 1, 1e-3F);
  }
  more = false;
  starts.arrive_and_wait();
  state.SetBytesProcessed(state.iterations() * state.range(1));
}

void threads_all_reduce(benchmark::State& state) { collective(state, all_reduce<float>); }
void threads_reduce_scatter(benchmark::State& state) { collective(state, reduce_scatter<float>); }
void threads_all_gather(benchmark::State& state) { collective(state, all_gather<float>); }

void sizes(benchmark::internal::Benchmark* entry) {
  for (const std::int64_t ranks : {2, 4}) {
    for (const std::int64_t bytes : {std::int64_t{4} << 10, std::int64_t{1} << 20, std::int64_t{16} << 20}) {
      entry->Args({ranks, bytes});
    }
  }
  entry->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(threads_all_reduce)->Apply(sizes);
BENCHMARK(threads_reduce_scatter)->Apply(sizes);
BENCHMARK(threads_all_gather)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
