#include "impl/analysis/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// A plan is better only when it is so by more than rounding; else the one with fewer devices, or seen first, stays.
constexpr double more_than_rounding = 1 - 1e-12;

bool contains(const auto& list, const auto& value) { return std::find(list.begin(), list.end(), value) != list.end(); }

// Plans of one kind differ in data degree and micro-batches only.
bool same_kind(const StepPlan& a, const StepPlan& b) {
  return a.order == b.order && a.zero_stage == b.zero_stage && a.chunks == b.chunks && a.tensor == b.tensor &&
         a.pipeline == b.pipeline && a.micro_batch == b.micro_batch;
}

// The first entry of an ascending frontier with more devices than given.
auto beyond(std::vector<Candidate>& frontier, std::int64_t devices) {
  return std::upper_bound(frontier.begin(), frontier.end(), devices,
                          [](std::int64_t limit, const Candidate& entry) { return limit < entry.plan.devices(); });
}

double best_at(std::vector<Candidate>& frontier, std::int64_t devices) {
  const auto after = beyond(frontier, devices);
  return after == frontier.begin() ? infinity : std::prev(after)->training_s;
}

// A training time that a plan on so many devices must beat to matter to the track.
double to_beat(TrackResult& result, std::int64_t devices, std::size_t keep_best) {
  const double on_frontier = best_at(result.frontier, devices);
  if (keep_best == 0) {
    return on_frontier;
  }
  const double among_best = result.best.size() < keep_best ? infinity : result.best.back().training_s;
  return std::max(on_frontier, among_best);
}

void offer_to_frontier(std::vector<Candidate>& frontier, const Candidate& candidate) {
  const std::int64_t devices = candidate.plan.devices();
  if (candidate.training_s >= best_at(frontier, devices) * more_than_rounding) {
    return;
  }
  auto at = beyond(frontier, devices);
  if (at != frontier.begin() && std::prev(at)->plan.devices() == devices) {
    --at;
  }
  auto end = at;
  while (end != frontier.end() && end->training_s >= candidate.training_s * more_than_rounding) {
    ++end;
  }
  frontier.insert(frontier.erase(at, end), candidate);
}

void offer_to_best(std::vector<Candidate>& best, const Candidate& candidate, std::size_t keep_best) {
  const auto same = std::find_if(best.begin(), best.end(),
                                 [&](const Candidate& entry) { return same_kind(entry.plan, candidate.plan); });
  if (same != best.end()) {
    if (same->training_s * more_than_rounding <= candidate.training_s) {
      return;
    }
    best.erase(same);
  }
  const auto at = std::upper_bound(best.begin(), best.end(), candidate.training_s,
                                   [](double time, const Candidate& entry) { return time < entry.training_s; });
  best.insert(at, candidate);
  if (best.size() > keep_best) {
    best.pop_back();
  }
}

// The micro-batch counts that a kind of plan may use: first, first + stride, …
struct MicroBatches {
  std::int64_t first = 1;
  std::int64_t stride = 1;
};

MicroBatches micro_batches_allowed(const StepPlan& plan) {
  switch (plan.order) {
    case Order::interleaved:
      return {plan.pipeline, plan.pipeline};
    case Order::modular:
      return {plan.pipeline, 1};
    default:
      return {1, 1};
  }
}

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) {
      result.push_back(i);
    }
  }
  return result;
}

class Search {
 public:
  explicit Search(const SearchOptions& options)
      : options_(options), setting_(options.setting), critical_batch_(options.setting.critical_batch()) {
    for (const Track& track : options.tracks) {
      result_.tracks.push_back({track, {}, {}});
    }
  }

  SearchResult run() {
    const auto started = std::chrono::steady_clock::now();
    const std::vector<std::int64_t> pipelines = divisors(setting_.model.layers);
    const double parts =
        static_cast<double>(options_.space.tensor.size() * options_.space.micro_batch.size() * pipelines.size());
    double done = 0;
    // Wide tensor groups and many pipeline ranks first: they hold the fast plans, which then rule out the slow ones.
    std::vector<std::int64_t> tensors = options_.space.tensor;
    std::sort(tensors.rbegin(), tensors.rend());
    for (const std::int64_t tensor : tensors) {
      for (const std::int64_t micro_batch : options_.space.micro_batch) {
        if (!tensor_and_micro_batch_fit(tensor, micro_batch)) {
          done += static_cast<double>(pipelines.size());
          continue;
        }
        result_.counts.divisibility += setting_.model.layers - static_cast<std::int64_t>(pipelines.size());
        for (auto pipeline = pipelines.rbegin(); pipeline != pipelines.rend(); ++pipeline) {
          if (options_.stop.stop_requested()) {
            result_.complete = false;
            return finish(started);
          }
          degrees({.pipeline = *pipeline, .tensor = tensor, .micro_batch = micro_batch});
          done += 1;
          if (options_.progress) {
            options_.progress(done / parts, result_.counts);
          }
        }
      }
    }
    return finish(started);
  }

 private:
  SearchResult finish(std::chrono::steady_clock::time_point started) {
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return std::move(result_);
  }

  bool tensor_and_micro_batch_fit(std::int64_t tensor, std::int64_t micro_batch) {
    if (setting_.model.heads % tensor != 0) {
      ++result_.counts.divisibility;
    } else if (tensor > options_.limits.node_size) {
      ++result_.counts.network;
    } else if (tensor > options_.limits.devices) {
      ++result_.counts.devices;
    } else if (static_cast<double>(micro_batch) > critical_batch_) {
      ++result_.counts.batch;
    } else {
      return true;
    }
    return false;
  }

  // All data degrees of one choice of pipeline and tensor degree and micro-batch.
  void degrees(const StepPlan& choice) {
    const std::int64_t by_devices = options_.limits.devices / (choice.pipeline * choice.tensor);
    const std::int64_t by_batch = batch_over(choice.micro_batch);
    result_.counts.devices += std::max<std::int64_t>(0, by_batch - by_devices);
    result_.counts.batch += std::max<std::int64_t>(0, by_devices - by_batch);
    if (by_devices == 0) {
      return;
    }
    stages_ = stages_of(setting_.model.layers, choice.pipeline);
    times_ = compute_times(setting_.model, static_cast<double>(choice.micro_batch), static_cast<double>(choice.tensor),
                           choice.pipeline > 1, Recompute::full, setting_.rates, setting_.wire);
    const std::vector<StepPlan> kinds = kinds_of(choice);
    for (std::int64_t data = 1; data <= std::min(by_devices, by_batch); ++data) {
      set_data_times(times_, setting_.model, static_cast<double>(choice.tensor), static_cast<double>(data),
                     setting_.rates, setting_.wire);
      for (StepPlan plan : kinds) {
        plan.data = data;
        micro_batches(plan);
      }
    }
  }

  std::int64_t batch_over(std::int64_t sequences) const {
    return static_cast<std::int64_t>(std::floor(critical_batch_ / static_cast<double>(sequences)));
  }

  // The methods that a choice of degrees admits.
  std::vector<StepPlan> kinds_of(const StepPlan& choice) {
    std::vector<StepPlan> kinds;
    const auto add = [&](Order order, std::int64_t chunks) {
      for (const int stage : options_.space.zero_stage) {
        StepPlan plan = choice;
        plan.order = order;
        plan.chunks = chunks;
        plan.zero_stage = stage;
        plan.data = 2;  // a form that partition lacks shows on two ranks
        plan.micro_batches = micro_batches_allowed(plan).first;
        if (!not_covered(plan, stages_, times_)) {
          kinds.push_back(plan);
        } else if (order == Order::interleaved && stage == 0) {
          ++result_.counts.network;
        } else {
          ++result_.counts.no_form;
        }
      }
    };
    if (choice.pipeline == 1) {
      add(Order::layered, 1);
      add(Order::depth_first, 1);
      return kinds;
    }
    add(Order::modular, 1);
    for (const std::int64_t chunks : divisors(setting_.model.layers / choice.pipeline)) {
      if (chunks > 1) {
        add(Order::interleaved, chunks);
      }
    }
    add(Order::one_forward_one_backward, 1);
    add(Order::gpipe, 1);
    return kinds;
  }

  bool takes_part(const Track& track, const StepPlan& plan) const {
    return contains(track.orders, plan.order) && contains(track.zero_stages, plan.zero_stage) &&
           (track.data || plan.data == 1) && (track.pipeline || plan.pipeline == 1) &&
           (track.tensor || plan.tensor == 1);
  }

  bool fits(StepPlan& plan, std::int64_t micro_batches) const {
    plan.micro_batches = micro_batches;
    return device_memory(plan, setting_).total() <= options_.limits.memory_bytes &&
           (!setting_.offload.active() || storage_suffices(plan, setting_));
  }

  // The largest allowed m up to `most` that fits, by bisection (memory grows with m); below `first` when none does.
  std::int64_t largest_that_fits(StepPlan& plan, MicroBatches allowed, std::int64_t count) const {
    if (fits(plan, allowed.first + (count - 1) * allowed.stride)) {
      return count;
    }
    std::int64_t good = 0;
    std::int64_t bad = count;
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (fits(plan, allowed.first + (middle - 1) * allowed.stride) ? good : bad) = middle;
    }
    return good;
  }

  void micro_batches(StepPlan& plan) {
    interested_.clear();
    for (TrackResult& track : result_.tracks) {
      if (takes_part(track.track, plan)) {
        interested_.push_back(&track);
      }
    }
    if (interested_.empty()) {
      return;
    }
    const MicroBatches allowed = micro_batches_allowed(plan);
    const std::int64_t most = batch_over(plan.data * plan.micro_batch);
    if (most < allowed.first) {
      ++result_.counts.batch;
      return;
    }
    const std::int64_t count = (most - allowed.first) / allowed.stride + 1;
    const std::int64_t fitting = largest_that_fits(plan, allowed, count);
    result_.counts.memory += count - fitting;

    double limit = time_to_beat(plan.devices());
    for (std::int64_t i = fitting; i >= 1; --i) {
      plan.micro_batches = allowed.first + (i - 1) * allowed.stride;
      const double steps = training_steps(setting_.step_rule, static_cast<double>(plan.batch()) / critical_batch_);
      if (options_.prune && steps * least_step_time(plan) >= limit * more_than_rounding) {
        if (setting_.step_rule == StepRule::same_tokens) {
          // Compute a micro-batch only grows as m falls, and so does the bound.
          result_.counts.dominated += i;
          return;
        }
        ++result_.counts.dominated;
        continue;
      }
      ++result_.counts.evaluated;
      const double step_s = pipeline_time(plan, stages_, times_) + exposed_data_time(plan, stages_, times_);
      const Candidate candidate{plan, steps * step_s};
      if (candidate.training_s >= limit) {
        continue;
      }
      if (setting_.offload.active() && !links_suffice(offload_need(plan, setting_, times_, step_s), setting_.offload)) {
        ++result_.counts.network;
        continue;
      }
      offer(candidate);
      limit = time_to_beat(plan.devices());
    }
  }

  // A step takes at least its compute, and with data parallelism the first gather and last reduction stick out.
  double least_step_time(const StepPlan& plan) const {
    const double sticks_out = plan.zero_stage == 0 ? times_.all_reduce_s : times_.gather_s + times_.reduce_s;
    return compute_time(plan, stages_, times_.both_s()) + sticks_out;
  }

  double time_to_beat(std::int64_t devices) {
    double limit = 0;
    for (TrackResult* track : interested_) {
      limit = std::max(limit, to_beat(*track, devices, options_.keep_best));
    }
    return limit;
  }

  void offer(const Candidate& candidate) {
    for (TrackResult* track : interested_) {
      offer_to_frontier(track->frontier, candidate);
      if (options_.keep_best > 0) {
        offer_to_best(track->best, candidate, options_.keep_best);
      }
    }
  }

  const SearchOptions& options_;
  const Setting& setting_;
  const double critical_batch_;  // sequences
  SearchResult result_;
  Stages stages_;
  LayerTimes times_;
  std::vector<TrackResult*> interested_;
};

void validate(const SearchOptions& options) {
  validate(options.setting);
  const auto at_least_one = [](const std::vector<std::int64_t>& values, const char* what) {
    if (values.empty()) {
      throw UsageError(fmt::format("search.{} is empty; it needs at least one value", what));
    }
    for (const std::int64_t value : values) {
      if (value < 1 || value > 1'000'000) {
        throw UsageError(fmt::format("search.{} holds {}; values are from 1 to 1000000", what, value));
      }
    }
  };
  at_least_one(options.space.tensor, "tensor");
  at_least_one(options.space.micro_batch, "micro_batch");
  for (const int stage : options.space.zero_stage) {
    if (stage < 0 || stage > 3) {
      throw UsageError(fmt::format("search.zero_stage holds {}; stages are 0 to 3", stage));
    }
  }
  const SearchLimits& limits = options.limits;
  if (limits.devices < 1 || limits.devices > 1'000'000'000) {
    throw UsageError(fmt::format("search.max_gpus is {}; it must be from 1 to 1000000000", limits.devices));
  }
  if (!(limits.memory_bytes > 0) || !std::isfinite(limits.memory_bytes)) {
    throw UsageError(fmt::format("search.memory_bytes is {}; it must be above 0", limits.memory_bytes));
  }
  if (limits.node_size < 1) {
    throw UsageError(fmt::format("node_size is {}; it must be at least 1", limits.node_size));
  }
}

}  // namespace

std::vector<Track> family_tracks() {
  const std::vector<int> stages{0, 1, 2, 3};
  const auto track = [&](const char* name, std::vector<Order> orders) {
    return Track{.name = name, .orders = std::move(orders), .zero_stages = stages};
  };
  return {track("baseline", {Order::depth_first, Order::gpipe, Order::one_forward_one_backward}),
          track("baseline_interleaved",
                {Order::depth_first, Order::gpipe, Order::one_forward_one_backward, Order::interleaved}),
          track("improved", {Order::layered, Order::depth_first, Order::modular})};
}

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> list{{"none", false, false, false},
                                          {"data", true, false, false},
                                          {"data+pipeline", true, true, false},
                                          {"data+tensor", true, false, true},
                                          {"data+pipeline+tensor", true, true, true}};
  return list;
}

const std::vector<std::string>& variants() {
  static const std::vector<std::string> list{"baseline", "interleaved", "partitioned", "improved"};
  return list;
}

std::vector<Track> strategy_tracks() {
  const std::vector<Order> ordinary{Order::depth_first, Order::gpipe, Order::one_forward_one_backward};
  std::vector<Order> with_interleaved = ordinary;
  with_interleaved.push_back(Order::interleaved);
  const std::vector<Order> proposed{Order::layered, Order::depth_first, Order::modular};
  std::vector<Track> tracks;
  for (const Strategy& strategy : strategies()) {
    const auto add = [&](const std::string& variant, const std::vector<Order>& orders, std::vector<int> stages) {
      tracks.push_back({.name = strategy.name + ("/" + variant),
                        .orders = orders,
                        .zero_stages = std::move(stages),
                        .data = strategy.data,
                        .pipeline = strategy.pipeline,
                        .tensor = strategy.tensor});
    };
    add("baseline", ordinary, {0});
    add("interleaved", with_interleaved, {0});
    add("partitioned", ordinary, {3});
    add("improved", proposed, {0, 3});
  }
  return tracks;
}

std::optional<Candidate> TrackResult::at_most(std::int64_t devices) const {
  std::optional<Candidate> fastest;
  for (const Candidate& candidate : frontier) {
    if (candidate.plan.devices() <= devices) {
      fastest = candidate;
    }
  }
  return fastest;
}

const TrackResult& SearchResult::track(std::string_view name) const {
  for (const TrackResult& result : tracks) {
    if (result.track.name == name) {
      return result;
    }
  }
  throw Error(fmt::format("the search has no track '{}'", name));
}

SearchResult search(const SearchOptions& options) {
  validate(options);
  return Search(options).run();
}

nlohmann::ordered_json to_json(const Counts& counts) {
  return {{"evaluated", counts.evaluated}, {"dominated", counts.dominated}, {"memory", counts.memory},
          {"batch", counts.batch},         {"devices", counts.devices},     {"divisibility", counts.divisibility},
          {"network", counts.network},     {"no_form", counts.no_form}};
}

}  // namespace lamina::analysis
