// Runs a row kernel as a GPU would: a block of threads for each row, with barriers and shared memory, here made of
// the host's threads. Slow, and exact about which thread touches what: what a block computes is tested without a GPU,
// and a missing barrier is a data race that the thread sanitizer sees.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "impl/kernels/team.h"

namespace lamina::kernels {

class EmulatedBlock {
 public:
  static constexpr int warp_threads = 1;
  struct Shared {
    explicit Shared(int threads) : barrier(threads), memory(static_cast<std::size_t>(threads)) {}
    std::barrier<> barrier;
    std::vector<double> memory;  // 8 bytes a warp
  };

  EmulatedBlock(Shared& shared, int thread, int threads) : shared_(shared), thread_(thread), threads_(threads) {}
  int thread() const { return thread_; }
  int threads() const { return threads_; }
  void barrier() { shared_.barrier.arrive_and_wait(); }
  template <class A>
  A* shared() {
    static_assert(sizeof(A) <= sizeof(double));
    return reinterpret_cast<A*>(shared_.memory.data());
  }
  template <class A>
  A warp_sum(A value) const {
    return value;
  }
  template <class A>
  A warp_maximum(A value) const {
    return value;
  }

 private:
  Shared& shared_;
  int thread_;
  int threads_;
};

template <int V, class Kernel>
void launch_rows_on_emulated_block(const Kernel& kernel, std::int64_t rows, int threads) {
  EmulatedBlock::Shared shared(threads);
  std::vector<std::jthread> workers;
  for (int thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&kernel, &shared, rows, thread, threads] {
      EmulatedBlock block(shared, thread, threads);
      BlockTeam<EmulatedBlock> team(block);
      for (std::int64_t row = 0; row < rows; ++row) {
        kernel.template run<V>(team, row);
      }
    });
  }
}

}  // namespace lamina::kernels
