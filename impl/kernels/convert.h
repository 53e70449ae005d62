// An array in another real type.
#pragma once

#include <algorithm>
#include <type_traits>

#include "impl/kernels/launch.h"
#include "impl/kernels/sixteen_bits.h"
#include "impl/kernels/update.h"

namespace lamina::kernels {

// to = from
template <class From, class To>
struct Convert {
  using Arithmetic = Wide<From>;
  std::int64_t elements;
  const From* from;
  To* to;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t chunk) const {
    const std::int64_t start = chunk * kChunk;
    team.template each_pack<V>(elements_of_chunk(chunk, elements),
                               [&](auto at) { store(at, to + start, load<Arithmetic>(at, from + start)); });
  }
};

// sum += addend, in the sum's type.
template <class Real, class Addend>
struct AddTo {
  using Arithmetic = Real;
  std::int64_t elements;
  const Addend* addend;
  Real* sum;

  template <int V, class Team>
  LAMINA_DEVICE void run(Team& team, std::int64_t chunk) const {
    const std::int64_t start = chunk * kChunk;
    team.template each_pack<V>(elements_of_chunk(chunk, elements), [&](auto at) {
      store(at, sum + start, load<Arithmetic>(at, addend + start) + load<Arithmetic>(at, sum + start));
    });
  }
};

template <class From, class To>
void convert_all(const From* from, To* to, std::int64_t elements, int threads) {
  if constexpr (std::is_same_v<From, To>) {
    std::copy_n(from, elements, to);
  } else {
    launch_rows(Convert<From, To>{.elements = elements, .from = from, .to = to}, chunks_of(elements), threads);
  }
}

}  // namespace lamina::kernels
