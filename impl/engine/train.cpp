#include "impl/engine/train.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <numeric>

#include "impl/base/error.h"
#include "impl/comm/gather.h"
#include "impl/engine/deadline.h"
#include "impl/engine/rank_runner.h"
#include "impl/engine/rank_threads.h"

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
    malloc_trim(0);  // the smaller ones of a run before would be used again, unseen
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

// What a rank needs for its steps exists before the first of them; this is where memory runs out.
std::unique_ptr<RankRunner> allocate_rank(const SharedInputs& inputs, Transport& transport) {
  try {
    return make_rank_runner(inputs.get(), transport);
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("rank {}: out of memory while it allocated its buffers", transport.rank()));
  }
}

using StepFinished = std::function<void(std::int64_t step, const RankStep&)>;

// One rank, from its allocation to its end. Ranks may come to it at different times; from then on none may keep the
// others waiting for longer than the deadline.
RankOutcome run_rank(const SharedInputs& inputs, Transport& transport, const StepFinished& finished) {
  const auto runner = allocate_rank(inputs, transport);
  transport.set_deadline(longest_wait(*inputs.get().request));
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
  outcome.collectives = runner->collectives();
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
      transport.abort(cause_of(error, rank));
    }
  };
  run_on_threads(static_cast<int>(ranks), fabric, run);
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
    transport.abort(cause_of(error, transport.rank()));
    throw;
  }
  return outcomes.empty() ? TrainOutcome{} : finish(request, std::move(outcomes), RanksAre::processes);
}

}  // namespace lamina
