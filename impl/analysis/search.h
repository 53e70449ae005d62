// Finds the plans with the shortest training time, over all plans of a space.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "impl/analysis/cost.h"

namespace lamina::analysis {

// The plans that are looked at: tensor degrees that divide the heads, pipeline degrees that divide the layers, every
// data degree and every m with D m b at most the critical batch. One stage: depth-first and layered (n = m and n = 1).
// Pipelines: gpipe, 1f1b, interleaved (v ≥ 2 divides K, m a multiple of L, ZeRO-0: the only stage with a form),
// modular (n = 1, m ≥ L). Full recomputation, sequence parallelism inside the tensor group.
struct SearchSpace {
  std::vector<std::int64_t> tensor{1, 2, 4, 8, 16};
  std::vector<std::int64_t> micro_batch{1, 2, 4, 8, 16};
  std::vector<int> zero_stage{0, 3};
};

struct SearchLimits {
  std::int64_t devices = 100'000;
  double memory_bytes = 80e9;
  std::int64_t node_size = 16;  // tensor groups stay inside a node
};

// A set of plans that competes for a frontier of its own: a plan takes part when its order and ZeRO stage are allowed
// and every degree above 1 is.
struct Track {
  std::string name;
  std::vector<Order> orders;
  std::vector<int> zero_stages;
  bool data = true;
  bool pipeline = true;
  bool tensor = true;
};

// baseline {depth-first, gpipe, 1f1b}, baseline_interleaved {those and interleaved}, improved {layered, modular and
// depth-first, which is hybrid accumulation with n = m}; all ZeRO stages.
std::vector<Track> family_tracks();

// Strategies (none, data, data+pipeline, data+tensor, data+pipeline+tensor) times variants: baseline (the ordinary
// orders without partition), interleaved (those and interleaved 1F1B), partitioned (the ordinary orders with ZeRO-3),
// improved. Named "strategy/variant".
struct Strategy {
  const char* name;
  bool data;
  bool pipeline;
  bool tensor;
};
const std::vector<Strategy>& strategies();
const std::vector<std::string>& variants();
std::vector<Track> strategy_tracks();

struct Candidate {
  StepPlan plan;
  double training_s = 0;
};

// Why plans were not taken. A choice that is refused before its micro-batches are counted out counts once.
struct Counts {
  std::int64_t evaluated = 0;     // step time computed
  std::int64_t dominated = 0;     // compute alone takes longer than a plan already found on as few devices
  std::int64_t memory = 0;        // do not fit the device (or, offloaded, the host or disk)
  std::int64_t batch = 0;         // need a larger batch than the critical one
  std::int64_t devices = 0;       // need more devices than allowed
  std::int64_t divisibility = 0;  // degree does not divide heads or layers
  std::int64_t network = 0;       // tensor group wider than a node, transfer longer than a chunk, offload link too slow
  std::int64_t no_form = 0;       // no closed form for the method with this ZeRO stage
};

struct TrackResult {
  Track track;
  std::vector<Candidate> frontier;  // ascending in devices, strictly falling in training time
  std::vector<Candidate> best;      // the fastest plans, each of another kind (order, stage, chunks, degrees but data)
  // The fastest plan on at most so many devices.
  std::optional<Candidate> at_most(std::int64_t devices) const;
};

struct SearchResult {
  std::vector<TrackResult> tracks;
  Counts counts;
  bool complete = true;  // false when stopped: the results are the best of what was seen
  double seconds = 0;
  const TrackResult& track(std::string_view name) const;  // throws Error when there is none
};

struct SearchOptions {
  Setting setting;
  SearchSpace space;
  SearchLimits limits;
  std::vector<Track> tracks = family_tracks();
  std::size_t keep_best = 5;
  bool prune = true;  // leave out plans whose lower bound is no better than what is found; never changes the result
  std::function<void(double share_done, const Counts&)> progress;  // now and then, from the searching thread
  std::stop_token stop;
};

// Throws UsageError with one line when an option is out of range.
SearchResult search(const SearchOptions& options);

nlohmann::ordered_json to_json(const Counts& counts);

}  // namespace lamina::analysis
