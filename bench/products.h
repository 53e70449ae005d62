// The matrix products of a training step, as a list: what a step's speed is held against, and what plain cblas is
// given to do in its place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/kernels/matrix.h"
#include "impl/plan/model_shape.h"

namespace lamina::bench {

// c [m, n] = op(a) · op(b), or c += where the step accumulates, with the leading dimensions that the step has.
struct Product {
  std::string name;  // "qkv", "expand gradient of weights" …
  kernels::Transpose transpose_a = kernels::Transpose::no;
  kernels::Transpose transpose_b = kernels::Transpose::no;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;
  std::int64_t count = 1;  // times it is made
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Of one micro-batch of `batch` sequences. Attention goes head by head and in blocks of queries, of which each meets
// the keys up to its own end: the same flops as the engine's.
std::vector<Product> layer_forward_products(const ModelShape& shape, std::int64_t batch);
std::vector<Product> layer_backward_products(const ModelShape& shape, std::int64_t batch, bool accumulate);
std::vector<Product> head_products(const ModelShape& shape, std::int64_t batch, bool accumulate);

double flops_of(const std::vector<Product>& products);  // all counts

// Memory for one product.
struct Operands {
  std::vector<float> a, b, c;
  explicit Operands(const Product& product);
};

// A list of products, each on memory of its own (once for all its counts), and its run by cblas_sgemm alone.
class PlainProducts {
 public:
  explicit PlainProducts(std::vector<Product> products);
  void run();
  const std::vector<Product>& products() const { return products_; }

 private:
  std::vector<Product> products_;
  std::vector<Operands> operands_;
};

// Threads of the BLAS itself; the engine's products always use one (kernels/matrix.h).
void use_blas_threads(int threads);

void plain_multiply(const Product& product, const float* a, const float* b, float* c);

}  // namespace lamina::bench
