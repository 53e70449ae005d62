#include "impl/engine/train.h"

#include <algorithm>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "impl/base/error.h"
#include "impl/engine/rank_runner.h"

#include <malloc.h>
#include <unistd.h>

namespace lamina {
namespace {

// Resident set of this process, from /proc (Linux); 0 where that cannot be read.
std::int64_t resident_set_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size_pages = 0, resident_pages = 0;
  statm >> size_pages >> resident_pages;
  return statm ? resident_pages * sysconf(_SC_PAGESIZE) : 0;
}

// No wait inside a step may last longer than this: 20 times what the step should take at a pace that any machine
// keeps, and at least 10 s.
std::chrono::duration<double> deadline_of(const TrainRequest& request) {
  constexpr double kSlowestFlops = 5e8;
  const Plan& plan = request.schedule.plan;
  const auto parameters = static_cast<double>(model_parameters(plan.model));
  const auto tokens = static_cast<double>(plan.micro_batches * plan.micro_batch_size * plan.model.sequence);
  const double compute_s = 8.0 * parameters * tokens / kSlowestFlops;
  double wire_s = 0;
  if (request.link.bandwidth_bits_per_s > 0) {
    const double visits = static_cast<double>(3 * plan.micro_batches);
    const auto bits = 8.0 * static_cast<double>(bytes_of(request.precision.wide()));
    wire_s = visits * parameters * bits / request.link.bandwidth_bits_per_s;
  }
  double asleep_s = 0;
  for (const Disturbance& disturbance : request.disturbances) {
    asleep_s += disturbance.sleep_s;
  }
  return std::chrono::duration<double>(std::max(10.0, 20.0 * (compute_s + wire_s + asleep_s)));
}

// Puts the ranks' steps together and reports each when its last rank has finished it.
class StepBoard {
 public:
  StepBoard(std::int64_t steps, std::int64_t ranks, const StepProgress& progress)
      : steps_(static_cast<std::size_t>(steps)), finished_(static_cast<std::size_t>(steps)), progress_(progress) {
    for (StepRecord& record : steps_) {
      record.rank_time_s.resize(static_cast<std::size_t>(ranks));
      record.rank_exposed_s.resize(static_cast<std::size_t>(ranks));
      record.rank_traffic.resize(static_cast<std::size_t>(ranks));
    }
  }

  void put(std::int64_t step, int rank, const RankStep& from) {
    const std::lock_guard lock(mutex_);
    StepRecord& record = steps_[static_cast<std::size_t>(step)];
    const auto at = static_cast<std::size_t>(rank);
    record.rank_time_s[at] = from.time_s;
    record.rank_exposed_s[at] = from.exposed_s;
    record.rank_traffic[at] = from.traffic;
    record.gradient_norm = from.gradient_norm;
    record.skipped = from.skipped;
    record.loss_scale = from.loss_scale;
    if (from.has_loss) {
      record.loss = from.counted_targets > 0 ? from.loss_sum / from.counted_targets : 0.0;
      record.counted_targets = static_cast<std::int64_t>(from.counted_targets);
    }
    if (++finished_[static_cast<std::size_t>(step)] == std::ssize(record.rank_time_s) && progress_) {
      progress_(step, record);
    }
  }

  std::vector<StepRecord> take() { return std::move(steps_); }

 private:
  std::mutex mutex_;
  std::vector<StepRecord> steps_;
  std::vector<std::int64_t> finished_;  // [step]: ranks that have
  const StepProgress& progress_;
};

void check(const TrainRequest& request) {
  const Plan& plan = request.schedule.plan;
  const Precision& precision = request.precision;
  LAMINA_CHECK(precision.reduce == precision.wide() || precision.reduce == precision.compute,
               "gradients of {} cannot be reduced in {}", name_of(precision.compute), name_of(precision.reduce));
  LAMINA_CHECK(std::ssize(request.schedule.programs) == plan.parallel.pipeline, "{} programs for {} pipeline ranks",
               request.schedule.programs.size(), plan.parallel.pipeline);
  LAMINA_CHECK(request.communication || (plan.parallel.pipeline == 1 && plan.zero_stage == 0),
               "compute alone cannot be run with a pipeline ({} ranks) or ZeRO (stage {})", plan.parallel.pipeline,
               plan.zero_stage);
}

// Throws when nothing was learnt in the steps measured.
void check_updated(std::span<const StepRecord> measured) {
  const bool skipped =
      std::all_of(measured.begin(), measured.end(), [](const StepRecord& step) { return step.skipped; });
  if (skipped && !measured.empty()) {
    throw Error(
        fmt::format("all {} measured steps were skipped: their gradients overflowed at loss scales from {} down to "
                    "{}; start from a smaller precision.loss_scale, or with more steps of warm-up",
                    measured.size(), measured.front().loss_scale, measured.back().loss_scale));
  }
}

}  // namespace

TrainOutcome train(const TrainRequest& request, const StepProgress& progress) {
  check(request);
  const Plan& plan = request.schedule.plan;
  const auto source = open_token_source(request.data, plan.model.sequence, plan.model.vocabulary, request.seed);
  std::map<std::string, NamedTensor> tensors;
  if (!request.initial_weights.empty()) {
    tensors = read_safetensors(request.initial_weights);
    for (const Unit unit : all_units(plan.model)) {
      unit_from_tensors(plan.model, unit, tensors);  // throws here rather than on every rank
    }
  }
  set_compute_threads(request.compute_threads_per_rank);
  const RunInputs inputs{&request, source.get(), request.initial_weights.empty() ? nullptr : &tensors};
  const std::int64_t ranks = plan.parallel.ranks();
  // Large buffers come from and go back to the system one by one, in every run of a process alike.
  mallopt(M_MMAP_THRESHOLD, 1 << 18);
  const std::int64_t resident_before = resident_set_bytes();

  ThreadsFabric fabric(static_cast<int>(ranks), request.link);
  StepBoard board(request.warmup_steps + request.measured_steps, ranks, progress);
  TrainOutcome outcome;
  outcome.rank_memory.resize(static_cast<std::size_t>(ranks));
  std::mutex outcome_mutex;
  std::set<Unit> built;
  const auto run_rank = [&](int rank) {
    Transport& transport = fabric.endpoint(rank);
    try {
      transport.set_deadline(deadline_of(request));
      const auto runner = make_rank_runner(inputs, transport);
      runner->run([&](std::int64_t step, const RankStep& from) { board.put(step, rank, from); });
      const Trace trace = runner->take_trace();
      const std::vector<Unit> units = runner->units();
      const std::lock_guard lock(outcome_mutex);
      outcome.rank_memory[static_cast<std::size_t>(rank)] = runner->memory();
      outcome.trace.insert(outcome.trace.end(), trace.begin(), trace.end());
      built.insert(units.begin(), units.end());
      outcome.resident_set_growth_bytes =
          std::max(outcome.resident_set_growth_bytes, resident_set_bytes() - resident_before);
    } catch (const std::exception& error) {
      transport.abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(run_rank, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (const std::string reason = fabric.abort_reason(); !reason.empty()) {
    throw Error(reason);
  }
  outcome.steps = board.take();
  check_updated(std::span(outcome.steps).subspan(static_cast<std::size_t>(request.warmup_steps)));
  for (const Unit unit : built) {
    outcome.layers_built += unit.kind == UnitKind::layer ? 1 : 0;
    outcome.parameters_built += unit_parameters(plan.model, unit);
  }
  return outcome;
}

}  // namespace lamina
