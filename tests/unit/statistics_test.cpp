#include "impl/harness/statistics.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "impl/base/error.h"
#include "tests/unit/harness_fakes.h"

namespace lamina {
namespace {

TEST(Median, OfOddEvenAndOne) {
  EXPECT_EQ(median(std::vector{3.0, 1.0, 2.0}), 2);
  EXPECT_EQ(median(std::vector{4.0, 1.0, 2.0, 3.0}), 2.5);
  EXPECT_EQ(median(std::vector{7.0}), 7);
  EXPECT_THROW(median({}), Error);
}

TEST(Summary, BelowSixSamplesIsTheRange) {
  for (const int count : {1, 2, 5}) {
    std::vector<double> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), 1);
    const Summary summary = summarize(samples);
    EXPECT_EQ(summary.spread, Summary::Spread::range) << count;
    EXPECT_EQ(summary.low, 1) << count;
    EXPECT_EQ(summary.high, count) << count;
  }
}

// Order statistics from tables of the sign test: n, and the rank of the lower end (1-based).
TEST(Summary, FromSixSamplesOnIsTheIntervalOfTheMedian) {
  const std::vector<std::pair<int, int>> table{{6, 1},  {8, 1},  {9, 2},  {11, 2},  {12, 3},  {15, 4},
                                               {17, 5}, {20, 6}, {25, 8}, {30, 10}, {50, 18}, {100, 40}};
  for (const auto& [count, rank] : table) {
    std::vector<double> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), 1);
    std::swap(samples.front(), samples.back());  // order must not matter
    const Summary summary = summarize(samples);
    EXPECT_EQ(summary.spread, Summary::Spread::median_95) << count;
    EXPECT_EQ(summary.low, rank) << count;
    EXPECT_EQ(summary.high, count + 1 - rank) << count;
  }
}

TEST(Summary, OfManySamplesIsFinite) {
  std::vector<double> samples(100000);
  std::iota(samples.begin(), samples.end(), 0);
  const Summary summary = summarize(samples);
  EXPECT_NEAR(summary.low, 50000 - 0.98 * std::sqrt(1e5), 3);  // the normal approximation
  EXPECT_NEAR(summary.high, 50000 + 0.98 * std::sqrt(1e5), 3);
}

std::vector<StepRecord> steps(const std::vector<double>& rank_times, const std::vector<double>& rank_exposed,
                              int count) {
  std::vector<StepRecord> records;
  for (int index = 0; index < count; ++index) {
    StepRecord record = fakes::step(static_cast<std::int64_t>(rank_times.size()), 0, 0);
    record.rank_time_s = rank_times;
    record.rank_exposed_s = rank_exposed;
    records.push_back(record);
  }
  return records;
}

TEST(Measurement, TakesTheSlowestRankOfEachStep) {
  std::vector<StepRecord> records{fakes::step(2, 0, 0), fakes::step(2, 0, 0)};
  records[0].rank_time_s = {0.5, 0.25};
  records[0].rank_exposed_s = {0.125, 0.0};
  records[1].rank_time_s = {0.25, 1.0};
  records[1].rank_exposed_s = {0.0, 0.75};
  records[1].counted_targets = 50;
  const Measurement measurement = measure(records, 100);
  EXPECT_EQ(measurement.step_time_s, (std::vector{0.5, 1.0}));
  EXPECT_EQ(measurement.exposed_communication_s, (std::vector{0.125, 0.75}));
  EXPECT_EQ(measurement.tokens_per_s, (std::vector{200.0, 100.0}));  // all tokens, counted as targets or not
  EXPECT_EQ(measurement.rank_step_time_s, (std::vector{0.375, 0.625}));
  EXPECT_EQ(measurement.rank_busy_s, (std::vector{0.3125, 0.25}));
}

// Waiting for a late rank is not communication.
TEST(Measurement, ExposedIsWhatEvenTheBusiestRankWaited) {
  const Measurement measurement = measure(steps({1.0, 0.875}, {0.75, 0.125}, 1), 100);
  EXPECT_EQ(measurement.exposed_communication_s, std::vector{0.25});
}

TEST(SlowRank, IsTheOneThatWaitsForNobody) {
  // Rank 1 is late by 0.1 s: all steps take 0.3 s, the others wait.
  const auto slow = find_slow_rank(steps({0.3, 0.3, 0.3}, {0.1, 0.0, 0.1}, 5));
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->rank, 1);
  EXPECT_DOUBLE_EQ(slow->busy_s, 0.3);
  EXPECT_DOUBLE_EQ(slow->others_busy_s, 0.2);
}

TEST(SlowRank, IsNotNamedBelowATenthOrWithinTheSpread) {
  EXPECT_FALSE(find_slow_rank(steps({0.3, 0.3}, {0.02, 0.0}, 5)));
  EXPECT_FALSE(find_slow_rank(steps({0.3}, {0.1}, 5)));
  EXPECT_FALSE(find_slow_rank(std::vector<StepRecord>{}));
  std::vector<StepRecord> noisy = steps({0.3, 0.3}, {0.1, 0.0}, 5);
  noisy[2].rank_exposed_s = {0.0, 0.1};  // once it was the other way round
  EXPECT_FALSE(find_slow_rank(noisy));
}

}  // namespace
}  // namespace lamina
