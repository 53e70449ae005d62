// Numbers out of samples. Times here are skewed by whatever else a machine does, so medians, never means.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "impl/base/median.h"
#include "impl/engine/train.h"

namespace lamina {

// A median and how far it may be trusted.
// From 6 samples on: the distribution-free interval of the median, [x_(k), x_(n+1-k)] of the sorted samples with the
// largest k whose coverage 1 - 2·P(Binomial(n, 1/2) < k) is at least 95 % (k = 1 covers 96.9 % at n = 6). Below 6 no
// such interval exists: low and high are the smallest and the largest sample.
struct Summary {
  enum class Spread : std::uint8_t { range, median_95 } spread = Spread::range;
  double median = 0;
  double low = 0;
  double high = 0;
};
std::string_view name_of(Summary::Spread spread);  // "range", "median_95"
Summary summarize(std::span<const double> samples);

// A rank that keeps the others waiting.
struct SlowRank {
  std::int64_t rank = 0;
  double busy_s = 0;         // its median
  double others_busy_s = 0;  // the median over the other ranks
};

// Step times cannot name it: ranks wait for one another, so all are equally slow. What differs is the time in which a
// rank was busy itself (step time less exposed time). The busiest rank is named when its median is at least a tenth
// above the other ranks' and its own spread lies above all of theirs. Nothing at one rank.
std::optional<SlowRank> find_slow_rank(std::span<const StepRecord> measured);

// Of all sequences of a step, counted as targets or not.
inline std::int64_t tokens_per_step(const Plan& plan) { return plan.global_batch() * plan.model.sequence; }

// What the measured steps of a run say.
struct Measurement {
  std::vector<double> step_time_s;              // of the slowest rank, per step
  std::vector<double> tokens_per_s;             // all tokens of the step over that time
  std::vector<double> exposed_communication_s;  // that time less the busy time of the busiest rank: what even it waited
  std::vector<double> rank_step_time_s;         // per rank, the median over steps
  std::vector<double> rank_busy_s;              // per rank, the median over steps
  std::optional<SlowRank> slow_rank;
};
Measurement measure(std::span<const StepRecord> measured, std::int64_t tokens_per_step);

}  // namespace lamina
