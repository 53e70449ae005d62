// Row kernels on one thread beside what bounds them on this machine, measured in the same run: memory (one
// scaled array added to another, of the same size) or arithmetic (exponentials in the nearest cache). Sizes: 128 rows,
// as in a micro-batch of one sequence, and 16384, which no cache holds. Bytes are those a kernel must move, each array
// once.
#include <benchmark/benchmark.h>

#include <vector>

#include "bench/products.h"
#include "impl/kernels/cross_entropy.h"
#include "impl/kernels/gelu.h"
#include "impl/kernels/launch.h"
#include "impl/kernels/layer_norm.h"
#include "impl/kernels/rows.h"
#include "impl/kernels/softmax.h"
#include "impl/kernels/update.h"

namespace {

using namespace lamina::kernels;

constexpr std::int64_t kColumns = 512;

std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.01F * static_cast<float>(i % 101) - 0.5F;
  }
  return values;
}

// Runs the kernel over and over; `bytes` a run.
template <class Kernel>
void run(benchmark::State& state, const Kernel& kernel, std::int64_t rows, std::int64_t elements, std::int64_t bytes) {
  for (auto _ : state) {
    launch_rows(kernel, rows, 1);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.SetItemsProcessed(state.iterations() * elements);
}

struct Arrays {
  std::int64_t rows, elements;
  std::vector<float> a, b, c, d, weight, bias, mean, rstd;
  explicit Arrays(const benchmark::State& state)
      : rows(state.range(0)),
        elements(rows * kColumns),
        a(numbers(elements)),
        b(numbers(elements)),
        c(numbers(elements)),
        d(numbers(elements)),
        weight(numbers(kColumns)),
        bias(numbers(kColumns)),
        mean(static_cast<std::size_t>(rows), 0.0F),
        rstd(static_cast<std::size_t>(rows), 1.0F) {}
  std::int64_t bytes(int arrays) const { return elements * arrays * static_cast<std::int64_t>(sizeof(float)); }
};

// a = a + s · b. In place: a line that is written without being read first is fetched all the same, unseen by the
// count.
struct AddScaled {
  using Arithmetic = float;
  std::int64_t columns;
  const float* b;
  float* a;
  template <int V, class Team>
  void run(Team& team, std::int64_t row) const {
    const std::int64_t start = row * columns;
    team.template each_pack<V>(columns, [&](auto at) {
      store(at, a + start, load<float>(at, a + start) + load<float>(at, b + start) * 3.0F);
    });
  }
};
void limit_memory(benchmark::State& state) {
  Arrays x(state);
  run(state, AddScaled{.columns = kColumns, .b = x.b.data(), .a = x.a.data()}, x.rows, x.elements, x.bytes(3));
}

// Exponentials of 4 KiB, again and again.
struct Exponentials {
  using Arithmetic = float;
  std::int64_t columns;
  const float* input;
  float* output;
  template <int V, class Team>
  void run(Team& team, std::int64_t) const {
    team.template each_pack<V>(columns, [&](auto at) { store(at, output, exponential(load<float>(at, input))); });
  }
};
void limit_exponential(benchmark::State& state) {
  Arrays x(state);
  run(state, Exponentials{.columns = kColumns, .input = x.a.data(), .output = x.b.data()}, x.rows, x.elements, 0);
}

// The fastest product this BLAS has to offer: large and square.
void limit_product(benchmark::State& state) {
  constexpr std::int64_t n = 1024;
  const lamina::bench::Product product{
      .name = "square", .m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n, .accumulate = false};
  const std::vector<float> a = numbers(n * n), b = numbers(n * n);
  std::vector<float> c = numbers(n * n);
  for (auto _ : state) {
    lamina::bench::plain_multiply(product, a.data(), b.data(), c.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(product.flops()));
}

void layer_norm_forward(benchmark::State& state) {
  Arrays x(state);
  run(state,
      LayerNormForward<float>{.columns = kColumns,
                              .input = x.a.data(),
                              .weight = x.weight.data(),
                              .bias = x.bias.data(),
                              .output = x.b.data(),
                              .mean = x.mean.data(),
                              .rstd = x.rstd.data()},
      x.rows, x.elements, x.bytes(2));
}
void layer_norm_backward(benchmark::State& state) {
  Arrays x(state);
  run(state,
      LayerNormBackward<float>{.columns = kColumns,
                               .input = x.a.data(),
                               .weight = x.weight.data(),
                               .bias = x.bias.data(),
                               .mean = x.mean.data(),
                               .rstd = x.rstd.data(),
                               .output_gradient = x.b.data(),
                               .input_gradient = x.c.data(),
                               .output = x.d.data(),
                               .add_to_input_gradient = false},
      x.rows, x.elements, x.bytes(4));
}
void layer_norm_parameter_gradient(benchmark::State& state) {
  Arrays x(state);
  const LayerNormParameterGradient<float> kernel{.rows = x.rows,
                                                 .columns = kColumns,
                                                 .input = x.a.data(),
                                                 .mean = x.mean.data(),
                                                 .rstd = x.rstd.data(),
                                                 .output_gradient = x.b.data(),
                                                 .weight_gradient = x.weight.data(),
                                                 .bias_gradient = x.bias.data(),
                                                 .accumulate_gradient = false};
  run(state, kernel, kernel.tiles(), x.elements, x.bytes(2));
}
void bias_gelu_forward(benchmark::State& state) {
  Arrays x(state);
  run(state,
      BiasGeluForward<float>{.columns = kColumns, .input = x.a.data(), .bias = x.bias.data(), .output = x.b.data()},
      x.rows, x.elements, x.bytes(2));
}
void bias_gelu_backward(benchmark::State& state) {
  Arrays x(state);
  // The gradient is multiplied by a slope each time; zeros stay what they are.
  std::fill(x.b.begin(), x.b.end(), 0.0F);
  run(state,
      BiasGeluBackward<float>{.columns = kColumns,
                              .input = x.a.data(),
                              .bias = x.bias.data(),
                              .gradient = x.b.data(),
                              .output = x.c.data()},
      x.rows, x.elements, x.bytes(4));
}
void residual_bias(benchmark::State& state) {
  Arrays x(state);
  run(state,
      ResidualBias<float>{.columns = kColumns, .residual = x.a.data(), .bias = x.bias.data(), .output = x.b.data()},
      x.rows, x.elements, x.bytes(2));
}
void column_sums(benchmark::State& state) {
  Arrays x(state);
  const ColumnSums<float> kernel{
      .rows = x.rows, .columns = kColumns, .input = x.a.data(), .output = x.weight.data(), .accumulate_output = false};
  run(state, kernel, kernel.tiles(), x.elements, x.bytes(1));
}
// Every row sees all columns but few: the whole row is work.
void causal_softmax_forward(benchmark::State& state) {
  Arrays x(state);
  for (auto _ : state) {
    for (std::int64_t row = 0; row < x.rows; row += 64) {
      launch_rows(CausalSoftmaxForward<float>{.columns = kColumns,
                                              .stride = kColumns,
                                              .first_visible = kColumns - 63,
                                              .scores = x.a.data() + row * kColumns},
                  64, 1);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * x.bytes(2));
  state.SetItemsProcessed(state.iterations() * x.elements);
}
void softmax_backward(benchmark::State& state) {
  Arrays x(state);
  std::fill(x.b.begin(), x.b.end(), 0.0F);
  run(state,
      SoftmaxBackward<float>{.columns = kColumns,
                             .probability_stride = kColumns,
                             .gradient_stride = kColumns,
                             .probabilities = x.a.data(),
                             .gradients = x.b.data()},
      x.rows, x.elements, x.bytes(3));
}
void cross_entropy(benchmark::State& state) {
  Arrays x(state);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(x.rows), 7);
  std::vector<double> losses(static_cast<std::size_t>(x.rows));
  run(state,
      CrossEntropy<float>{.columns = kColumns,
                          .targets = targets.data(),
                          .gradient_scale = 1.0F,
                          .logits = x.a.data(),
                          .losses = losses.data()},
      x.rows, x.elements, x.bytes(2));
}
void sum_of_squares(benchmark::State& state) {
  Arrays x(state);
  std::vector<double> sums(static_cast<std::size_t>(chunks_of(x.elements)));
  run(state, SumOfSquares<float>{.elements = x.elements, .values = x.a.data(), .sums = sums.data()},
      chunks_of(x.elements), x.elements, x.bytes(1));
}
void adamw(benchmark::State& state) {
  Arrays x(state);
  std::fill(x.d.begin(), x.d.end(), 1e-4F);
  run(state,
      AdamW<float>{.elements = x.elements,
                   .keep = 0.9999F,
                   .one_minus_beta1 = 0.1F,
                   .beta2 = 0.95F,
                   .one_minus_beta2 = 0.05F,
                   .step_size = 1e-3F,
                   .root_correction2 = 0.5F,
                   .epsilon = 1e-8F,
                   .gradient_scale = 1.0F,
                   .parameters = x.a.data(),
                   .gradient = x.b.data(),
                   .moment1 = x.c.data(),
                   .moment2 = x.d.data()},
      chunks_of(x.elements), x.elements, x.bytes(7));
}
void sgd(benchmark::State& state) {
  Arrays x(state);
  run(state,
      Sgd<float>{.elements = x.elements,
                 .learning_rate = 1e-3F,
                 .decay = 0.1F,
                 .gradient_scale = 1.0F,
                 .parameters = x.a.data(),
                 .gradient = x.b.data()},
      chunks_of(x.elements), x.elements, x.bytes(3));
}

#define LAMINA_ROWS Arg(128)->Arg(16384)->Unit(benchmark::kMicrosecond)
BENCHMARK(limit_memory)->LAMINA_ROWS;
BENCHMARK(limit_exponential)->Arg(128)->Unit(benchmark::kMicrosecond);
BENCHMARK(limit_product)->Unit(benchmark::kMicrosecond);
BENCHMARK(layer_norm_forward)->LAMINA_ROWS;
BENCHMARK(layer_norm_backward)->LAMINA_ROWS;
BENCHMARK(layer_norm_parameter_gradient)->LAMINA_ROWS;
BENCHMARK(bias_gelu_forward)->LAMINA_ROWS;
BENCHMARK(bias_gelu_backward)->LAMINA_ROWS;
BENCHMARK(residual_bias)->LAMINA_ROWS;
BENCHMARK(column_sums)->LAMINA_ROWS;
BENCHMARK(causal_softmax_forward)->LAMINA_ROWS;
BENCHMARK(softmax_backward)->LAMINA_ROWS;
BENCHMARK(cross_entropy)->LAMINA_ROWS;
BENCHMARK(sum_of_squares)->LAMINA_ROWS;
BENCHMARK(adamw)->LAMINA_ROWS;
BENCHMARK(sgd)->LAMINA_ROWS;

}  // namespace

int main(int argc, char** argv) {
  lamina::bench::use_blas_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
