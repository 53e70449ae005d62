// Loops, products and layers shared out over threads: the same results as on one, whoever takes which piece.
#include "impl/kernels/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "impl/kernels/launch.h"
#include "impl/kernels/matrix.h"
#include "impl/kernels/rows.h"
#include "impl/model/transformer.h"
#include "impl/model/weights.h"

namespace lamina {
namespace {

using kernels::for_pieces;
using kernels::piece_begin;
using kernels::Transpose;

std::vector<double> numbers(std::int64_t count, int array) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<double>(i) * 1.7 + array * 0.37);
  }
  return values;
}

TEST(Parallel, EveryPieceOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    for (const std::int64_t pieces : {0, 1, 2, 7, 64}) {
      std::vector<std::atomic<int>> taken(static_cast<std::size_t>(pieces));
      for_pieces(pieces, threads, [&](std::int64_t piece, int) { ++taken[static_cast<std::size_t>(piece)]; });
      for (const auto& times : taken) {
        EXPECT_EQ(times, 1) << pieces << " pieces, " << threads << " threads";
      }
    }
  }
}

// Many short loops, one after the other: a thread that comes late for one must not spoil the next.
TEST(Parallel, ShortLoopsFollowEachOther) {
  std::int64_t total = 0;
  for (std::int64_t loop = 0; loop < 20000; ++loop) {
    std::array<std::int64_t, 4> sums{};
    for_pieces(4, 3, [&](std::int64_t piece, int) { sums[static_cast<std::size_t>(piece)] = piece + loop; });
    for (const std::int64_t sum : sums) {
      total += sum;
    }
  }
  EXPECT_EQ(total, 20000 * 6 + 4 * (20000 * 19999 / 2));
}

TEST(Parallel, AWorkerHasOnePieceAtATime) {
  constexpr int kThreads = 4;
  std::array<std::atomic<bool>, kThreads> busy{};
  std::atomic<int> collisions{0};
  for_pieces(200, kThreads, [&](std::int64_t, int worker) {
    ASSERT_LT(worker, kThreads);
    collisions += busy[static_cast<std::size_t>(worker)].exchange(true) ? 1 : 0;
    std::this_thread::yield();
    busy[static_cast<std::size_t>(worker)] = false;
  });
  EXPECT_EQ(collisions, 0);
}

// As the ranks of a process do it.
TEST(Parallel, SeveralCallersHaveHelpersOfTheirOwn) {
  std::vector<std::jthread> callers;
  std::atomic<int> pieces{0};
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 50; ++loop) {
        for_pieces(5, 2, [&](std::int64_t, int) { ++pieces; });
      }
    });
  }
  callers.clear();
  EXPECT_EQ(pieces, 3 * 50 * 5);
}

TEST(Parallel, PartsCoverAllItems) {
  for (const std::int64_t items : {1, 31, 32, 33, 97, 512}) {
    for (const std::int64_t pieces : {1, 2, 3, 5}) {
      EXPECT_EQ(piece_begin(0, pieces, items, 32), 0);
      EXPECT_EQ(piece_begin(pieces, pieces, items, 32), items);
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        EXPECT_LE(piece_begin(piece, pieces, items, 32), piece_begin(piece + 1, pieces, items, 32));
      }
    }
  }
}

// Both ways of cutting (c wider than high, and higher than wide), all transposes, sizes that do not divide.
TEST(Parallel, ProductsInPieces) {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const Size size : {Size{70, 333, 130}, Size{333, 70, 130}, Size{200, 200, 100}}) {
    for (const Transpose ta : {Transpose::no, Transpose::yes}) {
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        const auto [m, n, k] = size;
        const std::int64_t lda = ta == Transpose::yes ? m : k;
        const std::int64_t ldb = tb == Transpose::yes ? k : n;
        const std::vector<double> a = numbers(m * k, 1), b = numbers(k * n, 2), before = numbers(m * n, 3);
        std::vector<double> expected = before;
        kernels::multiply(ta, tb, m, n, k, 0.5, a.data(), lda, b.data(), ldb, 1.0, expected.data(), n);
        for (const int threads : {2, 3}) {
          std::vector<double> c = before;
          kernels::multiply(ta, tb, m, n, k, 0.5, a.data(), lda, b.data(), ldb, 1.0, c.data(), n, threads);
          for (std::size_t i = 0; i < c.size(); ++i) {
            ASSERT_NEAR(c[i], expected[i], 1e-12) << m << "x" << n << "x" << k << " on " << threads;
          }
        }
      }
    }
  }
}

// Rows enough for several pieces, and a number that does not divide.
TEST(Parallel, RowsInPieces) {
  constexpr std::int64_t kRows = 1021, kColumns = 130;
  const std::vector<double> residual = numbers(kRows * kColumns, 1), bias = numbers(kColumns, 2);
  std::vector<double> output(residual.size());
  kernels::launch_rows(
      kernels::ResidualBias<double>{
          .columns = kColumns, .residual = residual.data(), .bias = bias.data(), .output = output.data()},
      kRows, 3);
  for (std::size_t i = 0; i < output.size(); ++i) {
    ASSERT_EQ(output[i], bias[i % kColumns] + residual[i]);
  }
}

struct LayerResult {
  std::vector<double> output, input_gradient, gradient;
};

LayerResult layer_on(int threads, Recompute recompute) {
  const ModelShape shape{.layers = 1, .hidden = 96, .heads = 6, .sequence = 130, .vocabulary = 17};
  Transformer<double> transformer(shape, 2, recompute, threads);
  std::vector<double> parameters(static_cast<std::size_t>(unit_parameters(shape, layer_unit(0))));
  initialize_range(shape, layer_unit(0), 1, 0, std::ssize(parameters), parameters.data());
  const std::vector<double> input = numbers(transformer.activation_elements(), 1);
  std::vector<double> saved(static_cast<std::size_t>(transformer.saved_elements()));
  LayerResult result{.output = std::vector<double>(input.size()),
                     .input_gradient = numbers(std::ssize(input), 2),
                     .gradient = std::vector<double>(parameters.size())};
  transformer.layer_forward(parameters.data(), input.data(), result.output.data(), saved.data());
  transformer.layer_backward(parameters.data(), input.data(), saved.data(), result.input_gradient.data(),
                             result.gradient.data(), false);
  return result;
}

void expect_same(const std::vector<double>& actual, const std::vector<double>& expected, const char* what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-11 * (1 + std::abs(expected[i]))) << what << "[" << i << "]";
  }
}

TEST(Parallel, ThreadsDoNotChangeALayer) {
  set_compute_threads(1);
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    const LayerResult one = layer_on(1, recompute);
    for (const int threads : {2, 3}) {
      const LayerResult several = layer_on(threads, recompute);
      expect_same(several.output, one.output, "output");
      expect_same(several.input_gradient, one.input_gradient, "gradient of the input");
      expect_same(several.gradient, one.gradient, "gradient");
    }
  }
}

}  // namespace
}  // namespace lamina
