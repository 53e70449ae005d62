#include "impl/kernels/matrix.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

#include "impl/base/error.h"
#include "impl/kernels/parallel.h"

namespace lamina::kernels {
namespace {

blasint blas_size(std::int64_t size) {
  LAMINA_CHECK(size <= std::numeric_limits<blasint>::max(), "matrix dimension {} is more than the BLAS can count",
               size);
  return static_cast<blasint>(size);
}

CBLAS_TRANSPOSE blas_transpose(Transpose transpose) { return transpose == Transpose::yes ? CblasTrans : CblasNoTrans; }

void blas_multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                   float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                   float* c, std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, blas_transpose(transpose_a), blas_transpose(transpose_b), blas_size(m), blas_size(n),
              blas_size(k), alpha, a, blas_size(lda), b, blas_size(ldb), beta, c, blas_size(ldc));
}

void blas_multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                   double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta,
                   double* c, std::int64_t ldc) {
  cblas_dgemm(CblasRowMajor, blas_transpose(transpose_a), blas_transpose(transpose_b), blas_size(m), blas_size(n),
              blas_size(k), alpha, a, blas_size(lda), b, blas_size(ldb), beta, c, blas_size(ldc));
}

// Cut along the longer side of c: each thread then has the smaller operand to bring into the BLAS's layout again, and
// the larger one is shared out.
template <class Real>
void multiply_in_pieces(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                        Real alpha, const Real* a, std::int64_t lda, const Real* b, std::int64_t ldb, Real beta,
                        Real* c, std::int64_t ldc, int threads) {
  constexpr double kLeastProducts = 1e6;  // some 20 µs of work for each thread
  constexpr std::int64_t kGrain = 32;     // a multiple of every BLAS kernel's own
  const double worth = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / kLeastProducts;
  const std::int64_t longer = std::max(m, n);
  const std::int64_t pieces = std::min({std::int64_t{threads}, static_cast<std::int64_t>(worth), longer / kGrain});
  if (pieces < 2) {
    blas_multiply(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  for_pieces(pieces, threads, [&](std::int64_t piece, int) {
    const std::int64_t begin = piece_begin(piece, pieces, longer, kGrain);
    const std::int64_t part = piece_begin(piece + 1, pieces, longer, kGrain) - begin;
    if (n >= m) {
      const Real* const columns = b + (transpose_b == Transpose::yes ? begin * ldb : begin);
      blas_multiply(transpose_a, transpose_b, m, part, k, alpha, a, lda, columns, ldb, beta, c + begin, ldc);
    } else {
      const Real* const rows = a + (transpose_a == Transpose::yes ? begin : begin * lda);
      blas_multiply(transpose_a, transpose_b, part, n, k, alpha, rows, lda, b, ldb, beta, c + begin * ldc, ldc);
    }
  });
}

}  // namespace

void multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
              const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
              std::int64_t ldc, int threads) {
  multiply_in_pieces(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, threads);
}

void multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta,
              double* c, std::int64_t ldc, int threads) {
  multiply_in_pieces(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, threads);
}

}  // namespace lamina::kernels
