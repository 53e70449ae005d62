// One rank's training step, and the step's own matrix products by plain cblas, taken in turn. The same model and batch
// as torch_step.py. Prints one JSON object.
#include <sys/resource.h>
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "baselines/baselines.h"
#include "bench/products.h"
#include "impl/engine/train.h"
#include "impl/model/transformer.h"
#include "impl/schedule/verify.h"

namespace {

using namespace lamina;

struct Times {
  std::vector<double> wall_s, processor_s;
};

double wall_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of all threads of the process.
double processor_now_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Options {
  ModelShape model{.layers = 8, .hidden = 512, .heads = 8, .sequence = 128, .vocabulary = 256};
  std::int64_t global_batch = 8;
  std::int64_t micro_batch = 1;
  std::int64_t ranks = 1;
  int threads = 1;
  std::int64_t steps = 3;
  bool products = true;
};

// The products of a step, each layer's on the same memory: nearer to the processor than the step's own, if anything.
class StepProducts {
 public:
  explicit StepProducts(const Options& o)
      : micro_batches_(o.global_batch / o.micro_batch / o.ranks),
        layers_(o.model.layers),
        forward_(bench::layer_forward_products(o.model, o.micro_batch)),
        head_(bench::head_products(o.model, o.micro_batch, true)),
        backward_(bench::layer_backward_products(o.model, o.micro_batch, true)) {}
  void run() {
    for (std::int64_t i = 0; i < micro_batches_; ++i) {
      for (std::int64_t layer = 0; layer < layers_; ++layer) {
        forward_.run();
      }
      head_.run();
      for (std::int64_t layer = 0; layer < layers_; ++layer) {
        backward_.run();
      }
    }
  }
  double flops() const {
    const double layer = bench::flops_of(forward_.products()) + bench::flops_of(backward_.products());
    return static_cast<double>(micro_batches_) *
           (static_cast<double>(layers_) * layer + bench::flops_of(head_.products()));
  }

 private:
  std::int64_t micro_batches_, layers_;
  bench::PlainProducts forward_, head_, backward_;
};

TrainRequest request_of(const Options& o) {
  PlanRequest wish{.method = std::string(data_parallel.name)};
  wish.parallel.data = o.ranks;
  const Plan plan =
      resolve_plan(data_parallel, o.model, {.global = o.global_batch, .micro = o.micro_batch}, wish, true);
  TrainRequest request{.schedule = build_schedule(data_parallel, plan)};
  verify(request.schedule);
  request.optimizer = {
      .kind = OptimizerConfig::Kind::adamw, .learning_rate = 1e-3, .weight_decay = 0.1, .clip_norm = 1.0};
  request.data.kind = DataConfig::Kind::synthetic;
  request.warmup_steps = 1;
  request.measured_steps = o.steps;
  request.compute_threads_per_rank = o.threads;
  return request;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("One rank's training step beside its matrix products by plain cblas");
  app.add_option("--layers", o.model.layers);
  app.add_option("--hidden", o.model.hidden);
  app.add_option("--heads", o.model.heads);
  app.add_option("--sequence", o.model.sequence);
  app.add_option("--vocabulary", o.model.vocabulary);
  app.add_option("--global-batch", o.global_batch);
  app.add_option("--micro-batch", o.micro_batch);
  app.add_option("--ranks", o.ranks);
  app.add_option("--threads", o.threads);
  app.add_option("--steps", o.steps);
  app.add_flag("--products,!--no-products", o.products, "Take the plain products in turn with the steps");
  CLI11_PARSE(app, argc, argv);

  StepProducts products(o);
  Times step, plain;
  double processor_before_s = 0;
  train(request_of(o), [&](std::int64_t number, const StepRecord& record) {
    const double processor_after_s = processor_now_s();
    if (number > 0) {
      step.wall_s.push_back(*std::max_element(record.rank_time_s.begin(), record.rank_time_s.end()));
      step.processor_s.push_back(processor_after_s - processor_before_s);
    }
    if (o.products) {
      const double start_s = wall_now_s();
      bench::use_blas_threads(o.threads);
      products.run();
      bench::use_blas_threads(1);
      if (number > 0) {
        plain.wall_s.push_back(wall_now_s() - start_s);
        plain.processor_s.push_back(processor_now_s() - processor_after_s);
      }
    }
    processor_before_s = processor_now_s();
  });
  const auto json_of = [](const Times& times) {
    return nlohmann::json{{"wall_s", times.wall_s}, {"processor_s", times.processor_s}};
  };
  const BlasInfo blas = blas_info();
  std::cout << nlohmann::json{{"tokens", o.global_batch * o.model.sequence},
                              {"flops", products.flops() * static_cast<double>(o.ranks)},
                              {"blas", {{"name", blas.name}, {"core", blas.core}}},
                              {"step", json_of(step)},
                              {"plain_products", json_of(plain)}}
                   .dump(2)
            << "\n";
}
