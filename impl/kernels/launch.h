// Runs a row kernel over many rows on the CPU. A kernel is a plain struct of pointers and sizes with a member
//   template <int V, class Team> void run(Team& team, std::int64_t row) const
// whose rows are independent of each other; every launcher (here, emulated_block.h, cuda/) takes any of them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "impl/kernels/parallel.h"
#include "impl/kernels/team.h"
#include "impl/kernels/update.h"

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

// Elements that one row of a kernel goes through. A tile is a "row" of some columns, gone down over all rows.
template <class Kernel>
std::int64_t elements_of_row(const Kernel& kernel) {
  if constexpr (requires { Kernel::kTile; }) {
    return Kernel::kTile * kernel.rows;
  } else if constexpr (requires { kernel.columns; }) {
    return kernel.columns;
  } else {
    return kChunk;
  }
}

// A thread is worth being asked for this many elements: some 3 µs, about what asking costs.
inline constexpr std::int64_t kLeastElements = 16384;

template <int V, class Kernel>
void launch_rows_in_packs(const Kernel& kernel, std::int64_t rows, int threads) {
  // Several pieces a thread, so that one which comes late or is interrupted holds up the others little.
  constexpr std::int64_t kPiecesOfThread = 4;
  const std::int64_t worth = rows * elements_of_row(kernel) / kLeastElements;
  const std::int64_t pieces = threads == 1 || worth < 2 ? 1 : std::min({rows, worth, kPiecesOfThread * threads});
  for_pieces(pieces, threads, [&](std::int64_t piece, int) {
    const std::int64_t end = piece_begin(piece + 1, pieces, rows, 1);
    for (std::int64_t row = piece_begin(piece, pieces, rows, 1); row < end; ++row) {
      CpuTeam team;
      kernel.template run<V>(team, row);
    }
  });
}

template <class Kernel>
void launch_rows(const Kernel& kernel, std::int64_t rows, int threads) {
  launch_rows_in_packs<kRegisterPack<typename Kernel::Arithmetic>>(kernel, rows, threads);
}

}  // namespace lamina::kernels
