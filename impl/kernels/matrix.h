// Matrix products, by OpenBLAS. All matrices are row-major; a leading dimension counts elements from row to row.
// `threads`: a large product is cut into that many, each computed by the BLAS on one thread of for_pieces(), which is
// faster at a transformer's shapes than the BLAS's own threads and does not spin. So the BLAS is to be told to use one.
#pragma once

#include <cstdint>

namespace lamina::kernels {

enum class Transpose : bool { no, yes };

// c [m, n] = alpha · op(a) · op(b) + beta · c, with op(a) [m, k] and op(b) [k, n]. With beta = 0, c is not read.
void multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
              const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
              std::int64_t ldc, int threads = 1);
void multiply(Transpose transpose_a, Transpose transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta,
              double* c, std::int64_t ldc, int threads = 1);

// y [rows, out] = x [rows, in] · w [out, in]ᵀ + beta · y
template <class Real>
void multiply_forward(std::int64_t rows, std::int64_t out, std::int64_t in, const Real* x, const Real* w, Real beta,
                      Real* y, int threads = 1) {
  multiply(Transpose::no, Transpose::yes, rows, out, in, Real(1), x, in, w, in, beta, y, out, threads);
}
// dx [rows, in] = dy [rows, out] · w [out, in]
template <class Real>
void multiply_input_gradient(std::int64_t rows, std::int64_t out, std::int64_t in, const Real* dy, const Real* w,
                             Real* dx, int threads = 1) {
  multiply(Transpose::no, Transpose::no, rows, in, out, Real(1), dy, out, w, in, Real(0), dx, in, threads);
}
// dw [out, in] (+)= dy [rows, out]ᵀ · x [rows, in]
template <class Real>
void multiply_weight_gradient(std::int64_t rows, std::int64_t out, std::int64_t in, const Real* dy, const Real* x,
                              bool accumulate, Real* dw, int threads = 1) {
  multiply(Transpose::yes, Transpose::no, out, in, rows, Real(1), dy, out, x, in, accumulate ? Real(1) : Real(0), dw,
           in, threads);
}

}  // namespace lamina::kernels
