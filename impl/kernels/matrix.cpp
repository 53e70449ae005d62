#include "impl/kernels/matrix.h"

#include <cblas.h>

#include <limits>

#include "impl/base/error.h"

namespace lamina::kernels {
namespace {

blasint blas_size(std::int64_t size) {
  LAMINA_CHECK(size <= std::numeric_limits<blasint>::max(), "matrix dimension {} is more than the BLAS can count",
               size);
  return static_cast<blasint>(size);
}

CBLAS_TRANSPOSE blas_transpose(Transpose transpose) { return transpose == Transpose::yes ? CblasTrans : CblasNoTrans; }

}  // namespace

void multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
              const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
              std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, blas_transpose(transpose_a), blas_transpose(transpose_b), blas_size(m), blas_size(n),
              blas_size(k), alpha, a, blas_size(lda), b, blas_size(ldb), beta, c, blas_size(ldc));
}

void multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta,
              double* c, std::int64_t ldc) {
  cblas_dgemm(CblasRowMajor, blas_transpose(transpose_a), blas_transpose(transpose_b), blas_size(m), blas_size(n),
              blas_size(k), alpha, a, blas_size(lda), b, blas_size(ldb), beta, c, blas_size(ldc));
}

}  // namespace lamina::kernels
