// Teams. A row kernel is a function over a team of workers that share a row. A team offers
//   each_pack<V>(n, f)      f(At<W>) for packs that cover [0, n); a worker sees the same packs in every pass with the
//                           same n and V, so that it may read back what it wrote
//   keep<V>(n, f)           the row values f(At<W>) kept between reductions: kept.each(g) calls g(At<W>, values)
//   sum(partial), maximum(partial)   over all workers; every worker gets the result
//   leads()                 true on one worker: the one that writes what a row has only once
//   packs_side_by_side      how many packs a worker does well to take down a column at once
// One worker may be a vectorised loop (CpuTeam) or one of a block's threads (BlockTeam).
#pragma once

#include <cstdint>

#include "impl/kernels/pack.h"

namespace lamina::kernels {

// One worker that takes the whole row: packs of V, then ever smaller ones for the end of the row.
class CpuTeam {
 public:
  // Sums down columns are independent of each other and hide each other's latency; and a cache line next to another is
  // fetched with it.
  static constexpr int packs_side_by_side = 8;

  LAMINA_DEVICE bool leads() const { return true; }

  template <int V, class F>
  LAMINA_DEVICE void each_pack(std::int64_t n, F f) const {
    std::int64_t index = 0;
    for (; index + V <= n; index += V) {
      f(At<V>{index});
    }
    end_of_row<V / 2>(index, n, f);
  }

  template <int V, class F>
  LAMINA_DEVICE auto keep(std::int64_t n, F f) const {
    return Kept<V, F>{*this, n, f};
  }

  template <class A, int V>
  LAMINA_DEVICE A sum(const Pack<A, V>& partial) const {
    return sum_of_lanes(partial);
  }
  template <class A, int V>
  LAMINA_DEVICE A maximum(const Pack<A, V>& partial) const {
    return maximum_of_lanes(partial);
  }

 private:
  // The row is still in the nearest cache: reading it again is what keeping it would be.
  template <int V, class F>
  struct Kept {
    const CpuTeam& team;
    std::int64_t n;
    F f;
    template <class G>
    LAMINA_DEVICE void each(G g) const {
      team.template each_pack<V>(n, [&](auto at) { g(at, f(at)); });
    }
  };

  template <int W, class F>
  LAMINA_DEVICE static void end_of_row(std::int64_t index, std::int64_t n, F& f) {
    if constexpr (W > 0) {
      if (index + W <= n) {
        f(At<W>{index});
        index += W;
      }
      end_of_row<W / 2>(index, n, f);
    }
  }
};

// One thread of a block. Block offers thread(), threads(), barrier(), shared<A>() (room for one A per warp), and the
// reductions inside a warp: warp_threads, warp_sum(a), warp_maximum(a).
template <class Block>
class BlockTeam {
 public:
  static constexpr int packs_side_by_side = 1;

  LAMINA_DEVICE explicit BlockTeam(Block& block) : block_(block) {}

  LAMINA_DEVICE bool leads() const { return block_.thread() == 0; }

  // Whole packs are dealt to the threads in turn, then single elements of the row's end.
  template <int V, class F>
  LAMINA_DEVICE void each_pack(std::int64_t n, F f) const {
    const std::int64_t whole = n / V * V;
    for (std::int64_t index = V * static_cast<std::int64_t>(block_.thread()); index < whole;
         index += V * static_cast<std::int64_t>(block_.threads())) {
      f(At<V>{index});
    }
    if constexpr (V > 1) {
      for (std::int64_t index = whole + block_.thread(); index < n; index += block_.threads()) {
        f(At<1>{index});
      }
    }
  }

  template <int V, class F>
  LAMINA_DEVICE auto keep(std::int64_t n, F f) const {
    return Kept<V, F>(*this, n, f);
  }

  template <class A, int V>
  LAMINA_DEVICE A sum(const Pack<A, V>& partial) {
    return over_warps(block_.warp_sum(sum_of_lanes(partial)), [](A a, A b) { return a + b; });
  }
  template <class A, int V>
  LAMINA_DEVICE A maximum(const Pack<A, V>& partial) {
    return over_warps(block_.warp_maximum(maximum_of_lanes(partial)), [](A a, A b) { return a < b ? b : a; });
  }

 private:
  // A thread keeps its first packs in registers; of a longer row it evaluates the others again.
  template <int V, class F>
  struct Kept {
    static constexpr int kPacks = 4;
    using Values = decltype(std::declval<F>()(At<V>{0}));
    const BlockTeam& team;
    std::int64_t n;
    F f;
    Values values[kPacks];

    LAMINA_DEVICE Kept(const BlockTeam& team_, std::int64_t n_, F f_) : team(team_), n(n_), f(f_) {
      for_first([&](int k, At<V> at) { values[k] = f(at); });
    }
    template <class G>
    LAMINA_DEVICE void each(G g) const {
      for_first([&](int k, At<V> at) { g(at, values[k]); });
      const std::int64_t kept = kPacks * V * static_cast<std::int64_t>(team.block_.threads());
      team.each_pack<V>(n, [&](auto at) {
        if (decltype(at)::width != V || at.index >= kept) {
          g(at, f(at));
        }
      });
    }
    template <class G>
    LAMINA_DEVICE void for_first(G g) const {
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < kPacks; ++k) {
        const std::int64_t index = V * (static_cast<std::int64_t>(k) * team.block_.threads() + team.block_.thread());
        if (index + V <= n) {
          g(k, At<V>{index});
        }
      }
    }
  };

  template <class A, class F>
  LAMINA_DEVICE A over_warps(A value, F combine) {
    A* shared = block_.template shared<A>();
    if (block_.thread() % Block::warp_threads == 0) {
      shared[block_.thread() / Block::warp_threads] = value;
    }
    block_.barrier();
    A total = shared[0];
    for (int warp = 1; warp < (block_.threads() + Block::warp_threads - 1) / Block::warp_threads; ++warp) {
      total = combine(total, shared[warp]);
    }
    block_.barrier();  // all have read before the next reduction writes
    return total;
  }

  Block& block_;
};

}  // namespace lamina::kernels
