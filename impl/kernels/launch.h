// Runs a row kernel over many rows on the CPU. A kernel is a plain struct of pointers and sizes with a member
//   template <int V, class Team> void run(Team& team, std::int64_t row) const
// whose rows are independent of each other; every launcher (here, emulated_block.h, cuda/) takes any of them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "impl/kernels/team.h"

namespace lamina::kernels {

// Elements of type A in this machine's widest register.
template <class A>
#if defined(__AVX512F__)
inline constexpr int kRegisterPack = 64 / sizeof(A);
#elif defined(__AVX__)
inline constexpr int kRegisterPack = 32 / sizeof(A);
#else
inline constexpr int kRegisterPack = 16 / sizeof(A);
#endif

template <int V, class Kernel>
void launch_rows_in_packs(const Kernel& kernel, std::int64_t rows, int threads) {
  if (threads == 1) {
    CpuTeam team;
    for (std::int64_t row = 0; row < rows; ++row) {
      kernel.template run<V>(team, row);
    }
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    CpuTeam team;
    kernel.template run<V>(team, row);
  }
}

template <class Kernel>
void launch_rows(const Kernel& kernel, std::int64_t rows, int threads) {
  launch_rows_in_packs<kRegisterPack<typename Kernel::Arithmetic>>(kernel, rows, threads);
}

}  // namespace lamina::kernels
