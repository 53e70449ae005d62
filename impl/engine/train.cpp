#include "impl/engine/train.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include "impl/base/error.h"
#include "impl/comm/gather.h"
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

// Puts the steps of ranks that are threads together, and reports each when its last rank has finished it.
class StepBoard {
 public:
  StepBoard(std::int64_t steps, std::int64_t ranks, const StepProgress& progress)
      : steps_(static_cast<std::size_t>(steps), std::vector<RankStep>(static_cast<std::size_t>(ranks))),
        finished_(static_cast<std::size_t>(steps)),
        progress_(progress) {}

  void put(std::int64_t step, int rank, const RankStep& from) {
    const std::lock_guard lock(mutex_);
    std::vector<RankStep>& ranks = steps_[static_cast<std::size_t>(step)];
    ranks[static_cast<std::size_t>(rank)] = from;
    if (++finished_[static_cast<std::size_t>(step)] == std::ssize(ranks) && progress_) {
      progress_(step, combine(ranks));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::vector<RankStep>> steps_;  // [step][rank]
  std::vector<std::int64_t> finished_;        // [step]: ranks that have
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

// All ranks' outcomes as that of the run.
TrainOutcome finish(const TrainRequest& request, std::vector<RankOutcome> ranks, RanksAre ranks_are) {
  TrainOutcome outcome = assemble(request.schedule.plan, std::move(ranks), ranks_are);
  check_updated(std::span(outcome.steps).subspan(static_cast<std::size_t>(request.warmup_steps)));
  return outcome;
}

// What the ranks of this process share, opened before the first of them starts.
class SharedInputs {
 public:
  explicit SharedInputs(const TrainRequest& request) {
    const Plan& plan = request.schedule.plan;
    source_ = open_token_source(request.data, plan.model.sequence, plan.model.vocabulary, request.seed);
    if (!request.initial_weights.empty()) {
      tensors_ = read_safetensors(request.initial_weights);
      for (const Unit unit : all_units(plan.model)) {
        unit_from_tensors(plan.model, unit, tensors_);  // throws here rather than on every rank
      }
    }
    set_compute_threads(request.compute_threads_per_rank);
    // Large buffers come from and go back to the system one by one, in every run of a process alike.
    mallopt(M_MMAP_THRESHOLD, 1 << 18);
    resident_before_ = resident_set_bytes();
    inputs_ = {&request, source_.get(), request.initial_weights.empty() ? nullptr : &tensors_};
  }
  SharedInputs(const SharedInputs&) = delete;
  SharedInputs& operator=(const SharedInputs&) = delete;

  const RunInputs& get() const { return inputs_; }
  std::int64_t resident_set_growth_bytes() const { return resident_set_bytes() - resident_before_; }

 private:
  std::unique_ptr<TokenSource> source_;
  std::map<std::string, NamedTensor> tensors_;
  std::int64_t resident_before_ = 0;
  RunInputs inputs_;
};

using StepFinished = std::function<void(std::int64_t step, const RankStep&)>;

// One rank, from its allocation to its end. Ranks may come to it at different times; from then on none may keep the
// others waiting for longer than the deadline.
RankOutcome run_rank(const SharedInputs& inputs, Transport& transport, const StepFinished& finished) {
  const auto runner = make_rank_runner(inputs.get(), transport);
  transport.set_deadline(deadline_of(*inputs.get().request));
  RankOutcome outcome;
  const std::vector<PortBytes> before = network_counters();
  runner->run([&](std::int64_t step, const RankStep& from) {
    outcome.steps.push_back(from);
    finished(step, from);
  });
  outcome.wire = counted_between(before, network_counters());
  outcome.memory = runner->memory();
  outcome.units = runner->units();
  outcome.trace = runner->take_trace();
  outcome.resident_set_growth_bytes = inputs.resident_set_growth_bytes();
  return outcome;
}

// The ranks of a run among those of the transport: the first ones.
std::unique_ptr<Communicator> group_of_run(const Plan& plan, Transport& transport) {
  std::vector<int> members(static_cast<std::size_t>(plan.parallel.ranks()));
  std::iota(members.begin(), members.end(), 0);
  return transport.group(members);
}

}  // namespace

TrainOutcome train(const TrainRequest& request, const StepProgress& progress) {
  check(request);
  const SharedInputs inputs(request);
  const std::int64_t ranks = request.schedule.plan.parallel.ranks();
  ThreadsFabric fabric(static_cast<int>(ranks), request.link);
  StepBoard board(request.warmup_steps + request.measured_steps, ranks, progress);
  std::vector<RankOutcome> outcomes(static_cast<std::size_t>(ranks));
  const auto run = [&](int rank) {
    Transport& transport = fabric.endpoint(rank);
    try {
      outcomes[static_cast<std::size_t>(rank)] =
          run_rank(inputs, transport, [&](std::int64_t step, const RankStep& from) { board.put(step, rank, from); });
    } catch (const std::exception& error) {
      transport.abort(cause_of(error));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(run, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (const std::string reason = fabric.abort_reason(); !reason.empty()) {
    throw Error(reason);
  }
  return finish(request, std::move(outcomes), RanksAre::threads);
}

TrainOutcome train_on(const TrainRequest& request, Transport& transport, const StepProgress& progress) {
  std::vector<RankOutcome> outcomes;
  try {
    check(request);
    const SharedInputs inputs(request);
    const RankOutcome mine = run_rank(inputs, transport, [&](std::int64_t step, const RankStep& from) {
      if (transport.rank() == 0 && progress) {
        progress(step, combine(std::span(&from, 1)));
      }
    });
    const auto group = group_of_run(request.schedule.plan, transport);
    for (const std::string& packed : gather_on_first(*group, pack(mine))) {
      outcomes.push_back(unpack(packed));
    }
    transport.set_deadline(std::chrono::duration<double>(std::numeric_limits<double>::infinity()));
  } catch (const std::exception& error) {
    transport.abort(cause_of(error));
    throw;
  }
  return outcomes.empty() ? TrainOutcome{} : finish(request, std::move(outcomes), RanksAre::processes);
}

}  // namespace lamina
