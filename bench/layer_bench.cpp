// Each product of a layer by the engine's multiply() and by plain cblas, and a whole layer forward and backward beside
// all its products by plain cblas. Items are floating-point operations of the products, in every case. Arguments:
// hidden, sequences in the micro-batch, threads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/products.h"
#include "impl/model/transformer.h"
#include "impl/model/weights.h"

namespace {

using namespace lamina;
using bench::PlainProducts;
using bench::Product;

struct Case {
  std::int64_t hidden, batch;
  int threads;
  ModelShape shape() const {
    return {.layers = 1, .hidden = hidden, .heads = hidden / 64, .sequence = 128, .vocabulary = 256};
  }
  std::string text() const { return fmt::format("{}/{}/{}", hidden, batch, threads); }
};

void count(benchmark::State& state, double flops) {
  state.SetItemsProcessed(static_cast<std::int64_t>(static_cast<double>(state.iterations()) * flops));
}

void one_product(benchmark::State& state, const Product& product, int threads, bool plain) {
  bench::use_blas_threads(plain ? threads : 1);
  bench::Operands x(product);
  for (auto _ : state) {
    if (plain) {
      bench::plain_multiply(product, x.a.data(), x.b.data(), x.c.data());
    } else {
      kernels::multiply(product.transpose_a, product.transpose_b, product.m, product.n, product.k, 1.0F, x.a.data(),
                        product.lda, x.b.data(), product.ldb, product.accumulate ? 1.0F : 0.0F, x.c.data(), product.ldc,
                        threads);
    }
  }
  count(state, product.flops());
}

struct Layer {
  ModelShape shape;
  Transformer<float> transformer;
  std::vector<float> parameters, gradient, input, output, saved;
  explicit Layer(const Case& c)
      : shape(c.shape()),
        transformer(shape, c.batch, Recompute::none, c.threads),
        parameters(static_cast<std::size_t>(unit_parameters(shape, layer_unit(0)))),
        gradient(parameters.size()),
        input(static_cast<std::size_t>(transformer.activation_elements())),
        output(input.size()),
        saved(static_cast<std::size_t>(transformer.saved_elements())) {
    set_compute_threads(c.threads);
    initialize_range(shape, layer_unit(0), 1, 0, std::ssize(parameters), parameters.data());
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] = 0.01F * static_cast<float>(i % 101) - 0.5F;
    }
    transformer.layer_forward(parameters.data(), input.data(), output.data(), saved.data());
  }
};

void layer_forward(benchmark::State& state, const Case& c) {
  Layer layer(c);
  for (auto _ : state) {
    layer.transformer.layer_forward(layer.parameters.data(), layer.input.data(), layer.output.data(),
                                    layer.saved.data());
  }
  count(state, bench::flops_of(bench::layer_forward_products(c.shape(), c.batch)));
}

void layer_backward(benchmark::State& state, const Case& c) {
  Layer layer(c);
  // Backward turns the gradient of the output into that of the input in place; zeros keep it from growing.
  std::fill(layer.output.begin(), layer.output.end(), 0.0F);
  for (auto _ : state) {
    layer.transformer.layer_backward(layer.parameters.data(), layer.input.data(), layer.saved.data(),
                                     layer.output.data(), layer.gradient.data(), true);
  }
  count(state, bench::flops_of(bench::layer_backward_products(c.shape(), c.batch, true)));
}

void plain_layer(benchmark::State& state, const std::vector<Product>& list, int threads) {
  bench::use_blas_threads(threads);
  PlainProducts products(list);
  for (auto _ : state) {
    products.run();
  }
  count(state, bench::flops_of(list));
}

template <class F>
void add(const std::string& name, int threads, F f) {
  auto* const entry = benchmark::RegisterBenchmark(name.c_str(), f)->Unit(benchmark::kMicrosecond);
  if (threads > 1) {
    entry->UseRealTime();  // the caller's processor time says nothing then
  }
}

void add_case(const Case& c) {
  const std::vector<Product> forward = bench::layer_forward_products(c.shape(), c.batch);
  const std::vector<Product> backward = bench::layer_backward_products(c.shape(), c.batch, true);
  for (const auto& list : {forward, backward}) {
    for (const Product& product : list) {
      const std::string name = fmt::format("product {} {}x{}x{}", product.name, product.m, product.n, product.k);
      for (const bool plain : {false, true}) {
        add(fmt::format("{}/{}/{}", name, c.text(), plain ? "plain" : "lamina"), c.threads,
            [=](benchmark::State& state) { one_product(state, product, c.threads, plain); });
      }
    }
  }
  add("layer forward/" + c.text() + "/lamina", c.threads, [=](benchmark::State& s) { layer_forward(s, c); });
  add("layer forward/" + c.text() + "/plain", c.threads,
      [=](benchmark::State& s) { plain_layer(s, forward, c.threads); });
  add("layer backward/" + c.text() + "/lamina", c.threads, [=](benchmark::State& s) { layer_backward(s, c); });
  add("layer backward/" + c.text() + "/plain", c.threads,
      [=](benchmark::State& s) { plain_layer(s, backward, c.threads); });
}

}  // namespace

int main(int argc, char** argv) {
  for (const int threads : {1, 2}) {
    for (const std::int64_t hidden : {512, 1024}) {
      for (const std::int64_t batch : {1, 4}) {
        add_case({.hidden = hidden, .batch = batch, .threads = threads});
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
