#include "impl/harness/statistics.h"

#include <algorithm>
#include <cmath>

#include "impl/base/error.h"

namespace lamina {
namespace {

std::vector<double> sorted(std::span<const double> samples) {
  std::vector<double> values(samples.begin(), samples.end());
  std::sort(values.begin(), values.end());
  return values;
}

// P(Binomial(n, 1/2) = k), by logarithms: n may be large.
double binomial_half(std::size_t n, std::size_t k) {
  const auto log_factorial = [](std::size_t value) { return std::lgamma(static_cast<double>(value) + 1); };
  return std::exp(log_factorial(n) - log_factorial(k) - log_factorial(n - k) - static_cast<double>(n) * std::log(2.0));
}

// The largest k with 1 - 2·P(X < k) >= 0.95; 0 when even k = 1 covers less.
std::size_t order_of_interval(std::size_t n) {
  double below = 0;  // P(X < k)
  std::size_t k = 0;
  while (k < n / 2 && 1 - 2 * (below + binomial_half(n, k)) >= 0.95) {
    below += binomial_half(n, k);
    ++k;
  }
  return k;
}

}  // namespace

std::string_view name_of(Summary::Spread spread) { return spread == Summary::Spread::range ? "range" : "median_95"; }

Summary summarize(std::span<const double> samples) {
  const double middle = median(samples);
  const std::vector<double> values = sorted(samples);
  const std::size_t k = order_of_interval(values.size());
  if (k == 0) {
    return {Summary::Spread::range, middle, values.front(), values.back()};
  }
  return {Summary::Spread::median_95, middle, values[k - 1], values[values.size() - k]};
}

std::optional<SlowRank> find_slow_rank(std::span<const StepRecord> measured) {
  if (measured.empty() || measured.front().rank_time_s.size() < 2) {
    return std::nullopt;
  }
  std::vector<Summary> busy;
  for (std::size_t rank = 0; rank < measured.front().rank_time_s.size(); ++rank) {
    std::vector<double> samples;
    for (const StepRecord& step : measured) {
      samples.push_back(step.rank_time_s.at(rank) - step.rank_exposed_s.at(rank));
    }
    busy.push_back(summarize(samples));
  }
  const auto busiest = std::max_element(busy.begin(), busy.end(),
                                        [](const Summary& a, const Summary& b) { return a.median < b.median; });
  std::vector<double> others;
  double highest_other = 0;
  for (const Summary& summary : busy) {
    if (&summary != &*busiest) {
      others.push_back(summary.median);
      highest_other = std::max(highest_other, summary.high);
    }
  }
  constexpr double kNotable = 1.1;
  const double others_median = median(others);
  if (busiest->median < kNotable * others_median || busiest->low <= highest_other) {
    return std::nullopt;
  }
  return SlowRank{busiest - busy.begin(), busiest->median, others_median};
}

Measurement measure(std::span<const StepRecord> measured, std::int64_t tokens_per_step) {
  LAMINA_CHECK(!measured.empty(), "{} measured steps", measured.size());
  Measurement result;
  const std::size_t ranks = measured.front().rank_time_s.size();
  for (const StepRecord& step : measured) {
    LAMINA_CHECK(step.rank_time_s.size() == ranks && step.rank_exposed_s.size() == ranks && ranks > 0,
                 "step with {} and {} rank times, expected {}", step.rank_time_s.size(), step.rank_exposed_s.size(),
                 ranks);
    const double slowest = *std::max_element(step.rank_time_s.begin(), step.rank_time_s.end());
    double busiest = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      busiest = std::max(busiest, step.rank_time_s[rank] - step.rank_exposed_s[rank]);
    }
    result.step_time_s.push_back(slowest);
    result.tokens_per_s.push_back(static_cast<double>(tokens_per_step) / slowest);
    result.exposed_communication_s.push_back(slowest - busiest);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<double> times, busy;
    for (const StepRecord& step : measured) {
      times.push_back(step.rank_time_s[rank]);
      busy.push_back(step.rank_time_s[rank] - step.rank_exposed_s[rank]);
    }
    result.rank_step_time_s.push_back(median(times));
    result.rank_busy_s.push_back(median(busy));
  }
  result.slow_rank = find_slow_rank(measured);
  return result;
}

}  // namespace lamina
