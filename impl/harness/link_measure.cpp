#include "impl/harness/link_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <numeric>
#include <thread>

#include "impl/base/error.h"
#include "impl/comm/collectives.h"
#include "impl/harness/statistics.h"

namespace lamina {
namespace {

using Clock = std::chrono::steady_clock;
using Values = std::span<float>;

constexpr std::int64_t kLeastRepetitions = 3;
constexpr std::int64_t kMostRepetitions = 1000;
constexpr TrafficTag kTag{TrafficKind::control, UnitKind::layer};
constexpr std::int64_t kElementBytes = sizeof(float);

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::span<const std::byte> bytes_of_values(std::span<const float> values) { return std::as_bytes(values); }

// Values that no other rank or element has and that sum exactly: small whole numbers.
float value_of(std::int64_t rank, std::int64_t element) { return static_cast<float>(rank + element % 97); }

class Meter {
 public:
  Meter(Transport& transport, const LinkMeasureOptions& options)
      : options_(options), rank_(transport.rank()), size_(transport.size()) {
    std::vector<int> everybody(static_cast<std::size_t>(size_));
    std::iota(everybody.begin(), everybody.end(), 0);
    all_ = transport.group(everybody, options.collectives);
    control_ = transport.group(everybody);
  }

  LinkMeasurement run() {
    LinkMeasurement result{.ranks = size_, .collectives = all_->collectives(), .samples = {}, .estimate = {}};
    if (size_ == 1) {
      return result;
    }
    for (int peer = 1; peer < size_; ++peer) {
      const std::size_t first = result.samples.size();
      for_each_size(1, [&](std::int64_t elements) { result.samples.push_back(measure_send(peer, elements)); });
      const LinkEstimate estimate = line_through(std::span(result.samples).subspan(first));
      if (!result.estimate || estimate.bandwidth_bits_per_s < result.estimate->bandwidth_bits_per_s) {
        result.estimate = estimate;
      }
    }
    for_each_size(size_, [&](std::int64_t elements) { result.samples.push_back(measure_all_reduce(elements)); });
    for_each_size(size_, [&](std::int64_t elements) { result.samples.push_back(measure_all_gather(elements)); });
    for_each_size(size_, [&](std::int64_t elements) { result.samples.push_back(measure_reduce_scatter(elements)); });
    return result;
  }

 private:
  void for_each_size(std::int64_t multiple, const std::function<void(std::int64_t elements)>& measure) const {
    for (std::int64_t bytes = options_.least_bytes;; bytes *= 2) {
      const std::int64_t last = std::min(bytes, options_.most_bytes);
      measure(std::max(multiple, (last / kElementBytes + multiple - 1) / multiple * multiple));
      if (bytes >= options_.most_bytes) {
        return;
      }
    }
  }

  // Largest of the ranks' values, on all ranks.
  double slowest(double value) {
    std::vector<double> of_ranks(static_cast<std::size_t>(size_), 0.0);
    of_ranks[static_cast<std::size_t>(rank_)] = value;
    all_sum(*control_, of_ranks, kTag);
    return *std::max_element(of_ranks.begin(), of_ranks.end());
  }

  // Repeats an operation, all ranks starting together, as often as the first two runs allow.
  LinkSample repeat(LinkSample sample, const std::function<void()>& prepare, const std::function<void()>& operate,
                    const std::function<bool()>& check) {
    std::vector<double> times;
    bool correct = true;
    std::int64_t repetitions = kLeastRepetitions;
    for (std::int64_t i = 0; i < repetitions + 1; ++i) {
      prepare();
      slowest(0);  // a barrier
      const auto start = Clock::now();
      operate();
      const double time = slowest(since(start));
      correct = correct && check();
      if (i == 0) {  // warms up, and says how often
        repetitions = std::clamp(static_cast<std::int64_t>(options_.seconds_a_size / std::max(time, 1e-9)),
                                 kLeastRepetitions, kMostRepetitions);
        continue;
      }
      times.push_back(time);
    }
    sample.repetitions = repetitions;
    sample.time_s = median(times);
    sample.correct = slowest(correct ? 0 : 1) == 0;
    return sample;
  }

  static LinkSample with_bandwidth(LinkSample sample, double bus_share) {
    sample.algorithm_bytes_per_s = static_cast<double>(sample.bytes) / sample.time_s;
    sample.bus_bytes_per_s = sample.algorithm_bytes_per_s * bus_share;
    return sample;
  }

  void fill(std::vector<float>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = value_of(rank_, static_cast<std::int64_t>(i));
    }
  }

  // There and back; half of it is one way.
  LinkSample measure_send(int peer, std::int64_t elements) {
    std::vector<float> mine(static_cast<std::size_t>(elements)), theirs(mine.size());
    fill(mine);
    const bool takes_part = rank_ == 0 || rank_ == peer;
    const int other = rank_ == 0 ? peer : 0;
    constexpr int kRounds = 2;
    LinkSample sample = repeat(
        {.operation = "send", .peer = peer, .bytes = elements * kElementBytes},
        [&] { std::fill(theirs.begin(), theirs.end(), -1.0F); },
        [&] {
          if (!takes_part) {
            return;
          }
          for (int turn = 0; turn < kRounds; ++turn) {
            if ((turn == 0) == (rank_ == 0)) {
              all_->send(other, bytes_of_values(mine), kTag)->wait();
            } else {
              all_->receive(other, std::as_writable_bytes(Values(theirs)))->wait();
            }
          }
        },
        [&] { return !takes_part || holds(theirs, [&](std::int64_t i) { return value_of(other, i); }); });
    sample.time_s /= kRounds;
    return with_bandwidth(sample, 1);
  }

  static bool holds(const std::vector<float>& values, const std::function<float(std::int64_t)>& expected) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != expected(static_cast<std::int64_t>(i))) {
        return false;
      }
    }
    return true;
  }
  float sum_of_ranks(std::int64_t element) const {
    float sum = 0;
    for (int rank = 0; rank < size_; ++rank) {
      sum += value_of(rank, element);
    }
    return sum;
  }
  double ring_share() const { return static_cast<double>(size_ - 1) / size_; }

  LinkSample measure_all_reduce(std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    return with_bandwidth(repeat(
                              {.operation = "all_reduce", .bytes = elements * kElementBytes}, [&] { fill(values); },
                              [&] { all_reduce(*all_, Values(values), kTag); },
                              [&] { return holds(values, [&](std::int64_t i) { return sum_of_ranks(i); }); }),
                          2 * ring_share());
  }

  LinkSample measure_all_gather(std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    const std::int64_t part = elements / size_;
    return with_bandwidth(repeat(
                              {.operation = "all_gather", .bytes = elements * kElementBytes}, [&] { fill(values); },
                              [&] { all_gather(*all_, Values(values), kTag); },
                              [&] { return holds(values, [&](std::int64_t i) { return value_of(i / part, i); }); }),
                          ring_share());
  }

  LinkSample measure_reduce_scatter(std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    const std::int64_t part = elements / size_;
    return with_bandwidth(repeat(
                              {.operation = "reduce_scatter", .bytes = elements * kElementBytes}, [&] { fill(values); },
                              [&] { reduce_scatter(*all_, Values(values), kTag); },
                              [&] {
                                for (std::int64_t i = rank_ * part; i < (rank_ + 1) * part; ++i) {
                                  if (values[static_cast<std::size_t>(i)] != sum_of_ranks(i)) {
                                    return false;
                                  }
                                }
                                return true;
                              }),
                          ring_share());
  }

  static LinkEstimate line_through(std::span<const LinkSample> sends) {
    const LinkSample& largest = sends.back();
    LinkEstimate estimate;
    double bytes = static_cast<double>(largest.bytes);
    double time = largest.time_s;
    if (sends.size() > 1) {
      const LinkSample& second = sends[sends.size() - 2];
      if (time > second.time_s) {  // else too small for the clock: all of it counts
        bytes -= static_cast<double>(second.bytes);
        time -= second.time_s;
      }
    }
    estimate.bandwidth_bits_per_s = 8 * bytes / time;
    const LinkSample& smallest = sends.front();
    estimate.latency_s =
        std::max(0.0, smallest.time_s - 8 * static_cast<double>(smallest.bytes) / estimate.bandwidth_bits_per_s);
    return estimate;
  }

  const LinkMeasureOptions& options_;
  int rank_;
  int size_;
  std::unique_ptr<Communicator> all_, control_;
};

}  // namespace

void check_sizes(const LinkMeasureOptions& options) {
  if (options.least_bytes < kElementBytes || options.most_bytes < options.least_bytes) {
    throw UsageError(fmt::format("sizes from {} to {} bytes; they must be at least {} and in order",
                                 options.least_bytes, options.most_bytes, kElementBytes));
  }
}

LinkMeasurement measure_link(Transport& transport, const LinkMeasureOptions& options) {
  check_sizes(options);
  return Meter(transport, options).run();
}

LinkMeasurement measure_threads(int ranks, const EmulatedLink& link, const LinkMeasureOptions& options) {
  ThreadsFabric fabric(ranks, link);
  std::vector<LinkMeasurement> results(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failures(results.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      try {
        results[index] = measure_link(fabric.endpoint(rank), options);
      } catch (...) {
        failures[index] = std::current_exception();
        fabric.endpoint(rank).abort("another rank failed");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
  return results.front();
}

std::string link_table(const LinkMeasurement& measurement) {
  constexpr const char* kRow = "{:>12} {:<16} {:>6} {:>12} {:>12} {:>12} {:>6}\n";
  std::string text =
      fmt::format(fmt::runtime(kRow), "size B", "operation", "times", "time us", "algbw GB/s", "busbw GB/s", "check");
  text.front() = '#';
  if (!measurement.estimate) {
    return text + fmt::format(fmt::runtime(kRow), "-", "-", "-", "-", "-", "-", "-") +
           "# one rank: nothing is sent, there is no bandwidth\n";
  }
  for (const LinkSample& sample : measurement.samples) {
    const std::string operation = sample.peer < 0 ? sample.operation : fmt::format("send 0 to {}", sample.peer);
    text += fmt::format(fmt::runtime(kRow), sample.bytes, operation, sample.repetitions,
                        fmt::format("{:.1f}", sample.time_s * 1e6),
                        fmt::format("{:.4f}", sample.algorithm_bytes_per_s / 1e9),
                        fmt::format("{:.4f}", sample.bus_bytes_per_s / 1e9), sample.correct ? "ok" : "WRONG");
  }
  return text + fmt::format("# point to point: latency {:.4g} s, bandwidth {:.4g} bit/s\n",
                            measurement.estimate->latency_s, measurement.estimate->bandwidth_bits_per_s);
}

Json link_json(const LinkMeasurement& measurement) {
  Json json;
  json["ranks"] = measurement.ranks;
  json["collectives"] = name_of(measurement.collectives);
  json["latency_s"] = json["bandwidth_bits_per_s"] = nullptr;
  if (measurement.estimate) {
    json["latency_s"] = finite_or_null(measurement.estimate->latency_s);
    json["bandwidth_bits_per_s"] = finite_or_null(measurement.estimate->bandwidth_bits_per_s);
  } else {
    json["reason"] = "one rank: nothing is sent";
  }
  json["samples"] = Json::array();
  for (const LinkSample& sample : measurement.samples) {
    json["samples"].push_back({{"operation", sample.operation},
                               {"peer", sample.peer < 0 ? Json(nullptr) : Json(sample.peer)},
                               {"bytes", sample.bytes},
                               {"repetitions", sample.repetitions},
                               {"time_s", finite_or_null(sample.time_s)},
                               {"algorithm_bytes_per_s", finite_or_null(sample.algorithm_bytes_per_s)},
                               {"bus_bytes_per_s", finite_or_null(sample.bus_bytes_per_s)},
                               {"correct", sample.correct}});
  }
  return json;
}

}  // namespace lamina
