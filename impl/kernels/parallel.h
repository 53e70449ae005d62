// Splits the loops of one compute stream over its threads.
//
// Not OpenMP, whose threads spin at the end of every loop: on a machine that is busy with something else, as with more
// ranks than cores, a loop of microseconds then takes a scheduler's time slice. Here a thread that has nothing to do
// spins for some microseconds and then sleeps, and pieces of work are taken by whoever is there: a caller whose helpers
// are asleep or without a core does all of it alone and waits for nobody.
#pragma once

#include <cstdint>
#include <type_traits>

namespace lamina::kernels {

// A piece of work and which of the threads has taken it: 0 (the caller) up to threads - 1.
using PieceFunction = void (*)(const void* context, std::int64_t piece, int worker);

void run_pieces(std::int64_t pieces, int threads, PieceFunction function, const void* context);

// Calls f(piece, worker) once for every piece in [0, pieces), on at most `threads` threads of which the caller is one;
// returns when all are done. No two pieces run at once with the same worker. f must not throw, nor start such a loop.
// The helpers belong to the calling thread and end with it.
template <class F>
void for_pieces(std::int64_t pieces, int threads, const F& f) {
  if (threads == 1 || pieces <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      f(piece, 0);
    }
    return;
  }
  run_pieces(
      pieces, threads,
      [](const void* context, std::int64_t piece, int worker) { (*static_cast<const F*>(context))(piece, worker); },
      &f);
}

// The first item of a piece, when `items` are dealt to `pieces` in equal parts with boundaries at multiples of `grain`;
// that of piece number `pieces` is `items`.
constexpr std::int64_t piece_begin(std::int64_t piece, std::int64_t pieces, std::int64_t items, std::int64_t grain) {
  const std::int64_t grains = (items + grain - 1) / grain;
  const std::int64_t begin = grains * piece / pieces * grain;
  return begin < items ? begin : items;
}

}  // namespace lamina::kernels
