// Run under an MPI launcher: how much of a link a ring all-reduce uses while every rank computes, and what it costs the
// compute. Turns of compute alone and of compute with all-reduces beside it alternate; ratios are taken within a pair
// of neighbours, so that other load on the machine weighs on both. Beside them, what other load does not disturb: how
// many products a second of its own processor time the compute makes, and what processor time the communication takes,
// as a share of a core while the wire is busy. Arguments: the link's bit/s, seconds a turn, pairs.
//
//   scripts/netlab run --ranks 2 --rate 600mbit -- build/release/tests/mpi_overlap 600e6 4 5
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "impl/comm/collectives.h"
#include "impl/comm/gather.h"
#include "impl/comm/mpi.h"
#include "impl/kernels/matrix.h"
#include "impl/model/transformer.h"

namespace lamina {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double processor_s(clockid_t whose) {
  timespec time{};
  clock_gettime(whose, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Rate {
  double per_s = 0;            // matrix products a second
  double per_processor_s = 0;  // and a second of the thread's own processor time
  double others_s = 0;         // processor time of the process's other threads
};

// Matrix products until told to end.
class Compute {
 public:
  Compute() : thread_([this] { run(); }) {}
  Rate end() {
    ending_ = true;
    thread_.join();
    return rate_;
  }

 private:
  void run() {
    constexpr std::int64_t kRows = 128, kHidden = 512;  // a layer's, small enough to end often
    std::vector<float> x(kRows * kHidden, 0.5F), w(kHidden * kHidden, 0.25F), y(kRows * kHidden);
    const double process_before = processor_s(CLOCK_PROCESS_CPUTIME_ID);
    const double own_before = processor_s(CLOCK_THREAD_CPUTIME_ID);
    const auto start = Clock::now();
    double products = 0;
    while (!ending_) {
      kernels::multiply_forward(kRows, kHidden, kHidden, x.data(), w.data(), 0.0F, y.data());
      ++products;
    }
    const double own_s = processor_s(CLOCK_THREAD_CPUTIME_ID) - own_before;
    rate_ = {products / seconds_since(start), products / own_s,
             processor_s(CLOCK_PROCESS_CPUTIME_ID) - process_before - own_s};
  }

  std::atomic<bool> ending_ = false;
  Rate rate_;
  std::thread thread_;
};

double median_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void report(const std::string& what, double share, double slowdown, double dearer, double processor) {
  fmt::print(
      "{}: {:.1f} % of the wire rate; compute slowed by {:.1f} %, by {:.1f} % in its own processor time; "
      "communication took {:.1f} % of a core\n",
      what, 100 * share, 100 * slowdown, 100 * dearer, 100 * processor);
  std::fflush(stdout);
}

int run(double bits_per_s, double turn_s, int pairs) {
  const auto transport = make_mpi_transport();
  try {
    LAMINA_CHECK(transport->size() >= 2, "{} ranks have no link", transport->size());
    set_compute_threads(1);
    const auto group = group_of_all(*transport);
    const int n = group->size();
    std::vector<float> gradient(static_cast<std::size_t>(n) * 2'000'000);
    const double bytes = 2.0 * (n - 1) / n * static_cast<double>(gradient.size() * sizeof(float));
    const double seconds_each = bytes * 8 / bits_per_s;
    const int reductions = std::max(1, static_cast<int>(turn_s / seconds_each));
    const auto reduce = [&] { all_reduce<float>(*group, gradient, {TrafficKind::data_reduce, UnitKind::layer}); };
    const auto meet = [&] {
      double nothing = 0;
      all_sum(*group, std::span(&nothing, 1), {TrafficKind::control, UnitKind::layer});
    };
    reduce();
    std::vector<double> share, slowdown, dearer, processor;
    for (int pair = 0; pair < pairs; ++pair) {
      meet();
      Compute alone;
      std::this_thread::sleep_for(std::chrono::duration<double>(turn_s));
      const Rate rate_alone = alone.end();
      meet();
      Compute beside;
      const auto start = Clock::now();
      for (int i = 0; i < reductions; ++i) {
        reduce();
      }
      const double taken_s = seconds_since(start);
      const Rate rate_beside = beside.end();
      share.push_back(reductions * bytes * 8 / taken_s / bits_per_s);
      slowdown.push_back(1 - rate_beside.per_s / rate_alone.per_s);
      dearer.push_back(1 - rate_beside.per_processor_s / rate_alone.per_processor_s);
      processor.push_back(rate_beside.others_s / (reductions * seconds_each));
      if (transport->rank() == 0) {
        report(fmt::format("pair {}", pair + 1), share.back(), slowdown.back(), dearer.back(), processor.back());
      }
    }
    if (transport->rank() == 0) {
      report(fmt::format("median of {}", pairs), median_of(share), median_of(slowdown), median_of(dearer),
             median_of(processor));
    }
  } catch (const std::exception& error) {
    transport->abort(error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: mpi_overlap BITS_PER_S SECONDS PAIRS\n");
    return EXIT_FAILURE;
  }
  try {
    return lamina::run(std::atof(argv[1]), std::atof(argv[2]), std::atoi(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
