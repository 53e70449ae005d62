#include "bench/products.h"

#include <cblas.h>

#include <algorithm>

namespace lamina::bench {
namespace {

using kernels::Transpose;

constexpr std::int64_t kQueryBlock = 64;

// y [rows, out] += x [rows, in] · wᵀ, where the bias stands already
Product forward(std::string name, std::int64_t rows, std::int64_t out, std::int64_t in) {
  return {std::move(name), Transpose::no, Transpose::yes, rows, out, in, in, in, out, true};
}
// dx [rows, in] = dy [rows, out] · w
Product input_gradient(std::string name, std::int64_t rows, std::int64_t out, std::int64_t in) {
  return {std::move(name) + " dx", Transpose::no, Transpose::no, rows, in, out, out, in, in, false};
}
// dw [out, in] (+)= dyᵀ · x
Product weight_gradient(std::string name, std::int64_t rows, std::int64_t out, std::int64_t in, bool accumulate) {
  return {std::move(name) + " dw", Transpose::yes, Transpose::no, out, in, rows, out, in, in, accumulate};
}

template <class F>
void for_query_blocks(const ModelShape& shape, F f) {
  for (std::int64_t first = 0; first < shape.sequence; first += kQueryBlock) {
    const std::int64_t queries = std::min(kQueryBlock, shape.sequence - first);
    f(queries, first + queries);
  }
}

}  // namespace

std::vector<Product> layer_forward_products(const ModelShape& shape, std::int64_t batch) {
  const std::int64_t d = shape.hidden, rows = batch * shape.sequence, s = shape.sequence;
  const std::int64_t size = d / shape.heads;
  std::vector<Product> products{forward("qkv", rows, 3 * d, d), forward("projection", rows, d, d),
                                forward("expand", rows, 4 * d, d), forward("contract", rows, d, 4 * d)};
  for_query_blocks(shape, [&](std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = batch * shape.heads;
    products.push_back({"scores", Transpose::no, Transpose::yes, queries, keys, size, 3 * d, 3 * d, s, false, count});
    products.push_back({"values", Transpose::no, Transpose::no, queries, size, keys, s, 3 * d, d, false, count});
  });
  return products;
}

std::vector<Product> layer_backward_products(const ModelShape& shape, std::int64_t batch, bool accumulate) {
  const std::int64_t d = shape.hidden, rows = batch * shape.sequence, s = shape.sequence;
  const std::int64_t size = d / shape.heads;
  std::vector<Product> products;
  const auto linear = [&](const char* name, std::int64_t out, std::int64_t in) {
    products.push_back(input_gradient(name, rows, out, in));
    products.push_back(weight_gradient(name, rows, out, in, accumulate));
  };
  linear("qkv", 3 * d, d);
  linear("projection", d, d);
  linear("expand", 4 * d, d);
  linear("contract", d, 4 * d);
  for_query_blocks(shape, [&](std::int64_t queries, std::int64_t keys) {
    const std::int64_t count = batch * shape.heads;
    const bool add = keys != s;
    products.push_back({"values dv", Transpose::yes, Transpose::no, keys, size, queries, s, d, 3 * d, add, count});
    products.push_back({"values dp", Transpose::no, Transpose::yes, queries, keys, size, d, 3 * d, s, false, count});
    products.push_back({"scores dq", Transpose::no, Transpose::no, queries, size, keys, s, 3 * d, 3 * d, false, count});
    products.push_back({"scores dk", Transpose::yes, Transpose::no, keys, size, queries, s, 3 * d, 3 * d, add, count});
  });
  return products;
}

std::vector<Product> head_products(const ModelShape& shape, std::int64_t batch, bool accumulate) {
  const std::int64_t d = shape.hidden, rows = batch * shape.sequence, v = shape.vocabulary;
  Product logits = forward("logits", rows, v, d);
  logits.accumulate = false;
  return {logits, input_gradient("logits", rows, v, d), weight_gradient("logits", rows, v, d, accumulate)};
}

double flops_of(const std::vector<Product>& products) {
  double flops = 0;
  for (const Product& product : products) {
    flops += static_cast<double>(product.count) * product.flops();
  }
  return flops;
}

void use_blas_threads(int threads) { openblas_set_num_threads(threads); }

void plain_multiply(const Product& p, const float* a, const float* b, float* c) {
  const auto as_blas = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
  const auto size = [](std::int64_t n) { return static_cast<blasint>(n); };
  cblas_sgemm(CblasRowMajor, as_blas(p.transpose_a), as_blas(p.transpose_b), size(p.m), size(p.n), size(p.k), 1.0F, a,
              size(p.lda), b, size(p.ldb), p.accumulate ? 1.0F : 0.0F, c, size(p.ldc));
}

namespace {

std::int64_t elements(Transpose transpose, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  return transpose == Transpose::yes ? (columns - 1) * stride + rows : (rows - 1) * stride + columns;
}

}  // namespace

Operands::Operands(const Product& p) {
  // Small numbers that differ, so that nothing overflows however often a product adds to its result.
  const auto numbers = [](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 1e-3F * static_cast<float>(i % 13) - 6e-3F;
    }
    return values;
  };
  a = numbers(elements(p.transpose_a, p.m, p.k, p.lda));
  b = numbers(elements(p.transpose_b, p.k, p.n, p.ldb));
  c = numbers(elements(Transpose::no, p.m, p.n, p.ldc));
}

PlainProducts::PlainProducts(std::vector<Product> products)
    : products_(std::move(products)), operands_(products_.begin(), products_.end()) {}

void PlainProducts::run() {
  for (std::size_t i = 0; i < products_.size(); ++i) {
    Operands& operands = operands_[i];
    for (std::int64_t time = 0; time < products_[i].count; ++time) {
      plain_multiply(products_[i], operands.a.data(), operands.b.data(), operands.c.data());
    }
  }
}

}  // namespace lamina::bench
