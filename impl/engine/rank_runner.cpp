#include "impl/engine/rank_runner.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <set>
#include <thread>
#include <tuple>

#include "impl/base/error.h"
#include "impl/comm/collectives.h"
#include "impl/engine/stream.h"

namespace lamina {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The groups a rank's ops communicate over. A pair of pipeline ranks has one for each stream that a transfer between
// them runs on, so that no two streams share one.
class Groups {
 public:
  Groups(const Schedule& schedule, CollectiveBackend collectives, Transport& transport) {
    const Parallel& parallel = schedule.plan.parallel;
    const Coordinates here = coordinates_of(transport.rank(), parallel);
    std::vector<int> members;
    for (std::int64_t data = 0; data < parallel.data; ++data) {
      members.push_back(static_cast<int>(rank_of({data, here.pipeline, here.tensor}, parallel)));
    }
    data_ = transport.group(members, collectives);
    members.clear();
    for (std::int64_t rank = 0; rank < parallel.ranks(); ++rank) {
      members.push_back(static_cast<int>(rank));
    }
    world_ = transport.group(members);
    for (const auto& link : links_of(schedule)) {
      const auto& [from, to, gradients] = link;
      if (from == here.pipeline || to == here.pipeline) {
        const auto world_rank = [&](std::int64_t pipeline) {
          return static_cast<int>(rank_of({here.data, pipeline, here.tensor}, parallel));
        };
        links_[link] = transport.group({world_rank(from), world_rank(to)});
      }
    }
  }

  Communicator& data() const { return *data_; }
  Communicator& world() { return *world_; }
  // Of the messages from one pipeline rank to another: their gradients or their activations.
  Communicator& from_to(std::int64_t from, std::int64_t to, bool gradients) {
    return *links_.at({from, to, gradients});
  }
  std::int64_t workspace_bytes() const {
    return static_cast<std::int64_t>(links_.size() + 2) * Communicator::kWorkspaceBytes;
  }

 private:
  using Link = std::tuple<std::int64_t, std::int64_t, bool>;  // from, to, gradients
  static std::set<Link> links_of(const Schedule& schedule) {
    std::set<Link> links;
    for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
      for (const Op& op : schedule.programs[rank].ops) {
        if (op.kind == OpKind::send) {
          links.insert({static_cast<std::int64_t>(rank), op.peer, is_backward(op.stream)});
        }
      }
    }
    return links;
  }

  std::unique_ptr<Communicator> data_, world_;
  std::map<Link, std::unique_ptr<Communicator>> links_;
};

// Stored: double, float, Bf16 or Fp16.
template <class Stored>
class Runner : public RankRunner {
  using Real = Wide<Stored>;

 public:
  Runner(const RunInputs& inputs, Transport& transport)
      : inputs_(inputs),
        request_(*inputs.request),
        transport_(transport),
        here_(coordinates_of(transport.rank(), request_.schedule.plan.parallel)),
        state_(request_.schedule, here_.pipeline, here_.data, request_.optimizer, request_.precision, request_.seed,
               inputs.tensors, request_.compute_threads_per_rank),
        groups_(request_.schedule, request_.collectives, transport),
        events_(state_.program().ops.size()),
        times_(state_.program().ops.size()) {
    for (const Op& op : state_.program().ops) {
      auto& stream = streams_[static_cast<std::size_t>(op.stream)];
      if (!stream) {
        stream = std::make_unique<Stream>();
      }
      if (first_compute_ < 0 && is_compute(op.kind)) {
        first_compute_ = op.id;
      }
    }
    if (request_.trace) {
      trace_.reserve(static_cast<std::size_t>(std::min(steps(), request_.traced_steps)) * state_.program().ops.size());
    }
  }

  ~Runner() override {
    for (Event& event : events_) {
      event.cancel();
    }
  }

  void run(const std::function<void(std::int64_t, const RankStep&)>& finished) override {
    sum_over(groups_.world(), 0);  // nobody's first step holds another's set-up
    run_start_ = common_start();
    for (step_ = 0; step_ < steps(); ++step_) {
      finished(step_, run_step());
      if (request_.dump && request_.dump->step == step_) {
        dump();
      }
      state_.end_step();
    }
  }

  RankMemory memory() const override {
    RankMemory memory = state_.memory();
    memory.transport = groups_.workspace_bytes();
    return memory;
  }
  Trace take_trace() override { return std::move(trace_); }
  std::vector<Unit> units() const override { return state_.units(); }
  CollectiveBackend collectives() const override { return groups_.data().collectives(); }

 private:
  struct OpTimes {
    double start_s = 0;  // since the run's start
    double end_s = 0;
  };

  std::int64_t steps() const { return request_.warmup_steps + request_.measured_steps; }

  // The trace's one beginning. Ranks of one host share its clock, and take the first rank's time; on another host the
  // clock began elsewhere, and that all have come this far together is the best there is.
  Clock::time_point common_start() {
    const Clock::time_point now = Clock::now();
    if (!request_.communication) {
      return now;
    }
    const double own_s = std::chrono::duration<double>(now.time_since_epoch()).count();
    const double first_s = sum_over(groups_.world(), transport_.rank() == 0 ? own_s : 0);
    constexpr double kApart_s = 1;  // more than one exchange of a few bytes takes
    return std::abs(own_s - first_s) > kApart_s
               ? now
               : now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(first_s - own_s));
  }

  RankStep run_step() {
    const double start_s = seconds_since(run_start_);
    transport_.ledger().reset();
    state_.load(*inputs_.source, step_);
    own_s_ = seconds_since(run_start_) - start_s;
    for (Event& event : events_) {
      event.reset();
    }
    for (const Op& op : state_.program().ops) {
      streams_[static_cast<std::size_t>(op.stream)]->enqueue([this, &op] { run_op(op); });
    }
    for (const auto& stream : streams_) {
      if (stream) {
        stream->synchronize();
      }
    }
    if (failed_) {
      std::rethrow_exception(failure_);
    }
    return record(start_s, seconds_since(run_start_));
  }

  RankStep record(double start_s, double end_s) {
    RankStep step;
    step.time_s = end_s - start_s;
    double busy_s = own_s_;
    for (const Op& op : state_.program().ops) {
      const OpTimes& times = times_[static_cast<std::size_t>(op.id)];
      if (op.stream == StreamKind::compute) {
        busy_s += times.end_s - times.start_s;
      }
      if (request_.trace && step_ >= steps() - request_.traced_steps) {
        trace_.push_back({op.id, transport_.rank(), static_cast<std::int32_t>(step_), times.start_s, times.end_s});
      }
      if (op.kind == OpKind::count) {
        step.counted_targets = state_.scalar(op.writes[0]);
      } else if (op.kind == OpKind::loss_total) {
        step.loss_sum = state_.scalar(op.writes[0]);
        step.has_loss = true;
      } else if (op.kind == OpKind::norm) {
        step.gradient_norm = state_.scalar(op.writes[0]);
      }
    }
    step.skipped = state_.step_skipped();
    step.loss_scale = state_.loss_scale();
    const bool alone = request_.schedule.plan.parallel.ranks() == 1;  // there is nobody to wait for
    step.exposed_s = alone ? 0.0 : std::max(0.0, step.time_s - busy_s);
    for (int kind = 0; kind < kTrafficKinds; ++kind) {
      for (int unit = 0; unit < 3; ++unit) {
        step.traffic.bytes[static_cast<std::size_t>(kind)][static_cast<std::size_t>(unit)] =
            transport_.ledger().bytes(static_cast<TrafficKind>(kind), static_cast<UnitKind>(unit));
      }
    }
    return step;
  }

  // On the op's stream. An op of a step that has failed, here or elsewhere, does nothing.
  void run_op(const Op& op) {
    for (const std::int32_t wait : op.waits) {
      if (!events_[static_cast<std::size_t>(wait)].wait()) {
        return;
      }
    }
    if (failed_) {
      return;
    }
    OpTimes& times = times_[static_cast<std::size_t>(op.id)];
    times.start_s = seconds_since(run_start_);
    try {
      perform(op);
    } catch (...) {
      fail(op, std::current_exception());
      return;
    }
    times.end_s = seconds_since(run_start_);
    events_[static_cast<std::size_t>(op.id)].set();
  }

  void fail(const Op& op, std::exception_ptr cause) {
    bool first = false;
    {
      const std::lock_guard lock(failure_mutex_);
      if (!failed_) {
        first = true;
        failure_ = name_cause(op, cause);
        failed_ = true;
      }
    }
    if (first) {
      try {
        std::rethrow_exception(failure_);
      } catch (const std::exception& error) {
        transport_.abort(error.what());  // of several ranks' reasons the transport keeps the first
      }
      for (Event& event : events_) {
        event.cancel();
      }
    }
  }

  std::exception_ptr name_cause(const Op& op, const std::exception_ptr& cause) const {
    try {
      std::rethrow_exception(cause);
    } catch (const Aborted&) {
      return cause;
    } catch (const std::exception& error) {
      return std::make_exception_ptr(
          Error(fmt::format("rank {}, step {}, {}: {}", transport_.rank(), step_, describe(op), cause_of(error))));
    }
  }

  void perform(const Op& op) {
    if (op.id == first_compute_) {
      disturb();
    }
    if (op.stream == StreamKind::compute) {
      state_.compute(op);
    } else if (is_control(op.kind)) {
      control(op);
    } else if (request_.communication) {
      communicate(op);
    }
  }

  void disturb() const {
    for (const Disturbance& disturbance : request_.disturbances) {
      if (disturbance.rank != transport_.rank() || (disturbance.step >= 0 && disturbance.step != step_)) {
        continue;
      }
      happen(disturbance);
    }
  }

  // Ends early when the job does: a rank that sleeps for an hour must not hold up another's failure.
  void sleep_for(double seconds) const {
    constexpr double kBetweenLooks = 0.02;
    const Clock::time_point start = Clock::now();
    for (double left = seconds; left > 0; left = seconds - seconds_since(start)) {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, kBetweenLooks)));
      if (failed_ || transport_.aborted()) {
        throw Aborted("another rank failed");
      }
    }
  }

  void happen(const Disturbance& disturbance) const {
    using enum Disturbance::Kind;
    switch (disturbance.kind) {
      case sleep:
        return sleep_for(disturbance.sleep_s);
      case fail:
        throw Error("this rank was asked to fail");
      case out_of_memory: {
        constexpr std::size_t kMoreThanThereIs = std::numeric_limits<std::ptrdiff_t>::max() / 2;
        void* volatile memory = ::operator new(kMoreThanThereIs);  // throws
        return ::operator delete(memory);
      }
      case exit:
        std::_Exit(EXIT_SUCCESS);
      case kill:
        ::kill(::getpid(), SIGKILL);
        return;
      case stop:
        ::kill(::getpid(), SIGSTOP);
        return;
    }
  }

  double sum_over(Communicator& group, double value) {
    if (request_.communication) {
      all_sum(group, std::span(&value, 1), {TrafficKind::control, UnitKind::layer});
    }
    return value;
  }

  void control(const Op& op) {
    switch (op.kind) {
      case OpKind::count:
        state_.scalar(op.writes[1]) = 0;
        state_.scalar(op.writes[0]) = sum_over(groups_.data(), static_cast<double>(state_.counted_targets()));
        return;
      case OpKind::norm: {
        const Clock::time_point start = Clock::now();
        const double own = state_.own_sum_of_squares();
        if (state_.plan().update_after_norm) {  // else updates compute meanwhile, and count
          own_s_ += seconds_since(start);
        }
        state_.scalar(op.writes[0]) = std::sqrt(sum_over(groups_.world(), own));
        return;
      }
      default:
        state_.scalar(op.writes[0]) = sum_over(groups_.data(), state_.scalar(op.reads[0]));
    }
  }

  void communicate(const Op& op) {
    switch (op.kind) {
      case OpKind::send:
        groups_.from_to(here_.pipeline, op.peer, is_backward(op.stream))
            .send(1, std::as_bytes(state_.stored(op.reads[0])), {TrafficKind::pipeline_send, op.unit.kind})
            ->wait();
        return;
      case OpKind::receive:
        groups_.from_to(op.peer, here_.pipeline, is_backward(op.stream))
            .receive(0, std::as_writable_bytes(state_.stored(op.writes[0])))
            ->wait();
        return;
      case OpKind::gather:
        return gather(op);
      case OpKind::reduce:
        return reduce(op);
      case OpKind::all_reduce:
        return sum_up(op);
      default:
        LAMINA_CHECK(false, "{} is not run by this engine", describe(op));
    }
  }

  // Gradients travel in 16 bits where the run says so.
  bool narrow_reduction() const {
    return bytes_of(request_.precision.reduce) < static_cast<std::int64_t>(sizeof(Real));
  }

  void sum_up(const Op& op) {
    const TrafficTag tag{TrafficKind::data_reduce, op.unit.kind};
    const std::span<Real> gradient = state_.gradient(op.writes[0]);
    return narrow_reduction() ? all_reduce<Real, Stored>(groups_.data(), gradient, tag)
                              : all_reduce(groups_.data(), gradient, tag);
  }

  template <class T>
  std::span<T> own_part(std::span<T> whole) const {
    const std::size_t part = whole.size() / static_cast<std::size_t>(state_.plan().parallel.data);
    return whole.subspan(part * static_cast<std::size_t>(here_.data), part);
  }

  void gather(const Op& op) {
    const std::span<Stored> whole = state_.stored(op.writes[0]);
    if (op.reads[0] != op.writes[0]) {
      const std::span<Stored> shard = state_.stored(op.reads[0]);
      std::copy(shard.begin(), shard.end(), own_part(whole).begin());
    }
    all_gather(groups_.data(), whole, {TrafficKind::data_gather, op.unit.kind});
  }

  void reduce(const Op& op) {
    const TrafficTag tag{TrafficKind::data_reduce, op.unit.kind};
    const std::span<Real> whole = state_.gradient(op.reads[0]);
    narrow_reduction() ? reduce_scatter<Real, Stored>(groups_.data(), whole, tag)
                       : reduce_scatter(groups_.data(), whole, tag);
    if (op.reads[0] == op.writes[0]) {
      return;
    }
    const std::span<Real> sum = own_part(whole);
    const std::span<Real> shard = state_.gradient(op.writes[0]);
    if (op.accumulate) {
      std::transform(shard.begin(), shard.end(), sum.begin(), shard.begin(), std::plus<>());
    } else {
      std::copy(sum.begin(), sum.end(), shard.begin());
    }
  }

  // ---- Dumps: rank 0 collects every unit's parts and writes whole tensors ----

  void dump() {
    const DumpConfig& config = *request_.dump;
    if (!config.gradients.empty()) {
      write_dump(config.gradients, [&](Unit unit) { return state_.own_gradient(unit); });
    }
    if (!config.weights.empty()) {
      write_dump(config.weights, [&](Unit unit) { return state_.own_parameters(unit); });
    }
  }

  template <class PartOf>
  void write_dump(const std::string& path, const PartOf& part_of) {
    const Plan& plan = state_.plan();
    std::vector<NamedTensor> tensors;
    for (const Unit unit : all_units(plan.model)) {
      std::vector<double> whole;
      for (std::int64_t data = 0; data < plan.parallel.data; ++data) {
        const int owner = static_cast<int>(rank_of({data, pipeline_owner(unit), 0}, plan.parallel));
        for (const Real value : collect_part(owner, unit, data, part_of)) {
          whole.push_back(value);
        }
      }
      if (transport_.rank() == 0) {
        for (NamedTensor& tensor : tensors_from_unit(plan.model, unit, whole)) {
          tensors.push_back(std::move(tensor));
        }
      }
    }
    if (transport_.rank() == 0) {
      write_safetensors(path, tensors, sizeof(Real));
    }
  }

  // The part's values on rank 0; nothing elsewhere.
  template <class PartOf>
  std::vector<Real> collect_part(int owner, Unit unit, std::int64_t data, const PartOf& part_of) {
    const TrafficTag tag{TrafficKind::control, unit.kind};
    if (transport_.rank() == owner) {
      const std::vector<Real> part = part_of(unit);
      if (owner == 0) {
        return part;
      }
      if (!part.empty()) {
        groups_.world().send(0, std::as_bytes(std::span(part)), tag)->wait();
      }
    } else if (transport_.rank() == 0) {
      const std::int64_t elements = unit_parameters(state_.plan().model, unit);
      const std::int64_t size = padded(elements, state_.plan().parallel.data) / state_.plan().parallel.data;
      const std::int64_t begin = std::min(data * size, elements);
      std::vector<Real> part(static_cast<std::size_t>(std::min(begin + size, elements) - begin));
      if (!part.empty()) {
        groups_.world().receive(owner, std::as_writable_bytes(std::span(part)))->wait();
      }
      return part;
    }
    return {};
  }

  std::int64_t pipeline_owner(Unit unit) const {
    const auto& programs = request_.schedule.programs;
    const auto owner = std::find_if(programs.begin(), programs.end(), [&](const Program& program) {
      return std::any_of(program.ops.begin(), program.ops.end(),
                         [&](const Op& op) { return op.kind == OpKind::update && op.unit == unit; });
    });
    return owner - programs.begin();
  }

  RunInputs inputs_;
  const TrainRequest& request_;
  Transport& transport_;
  Coordinates here_;
  RankState<Stored> state_;
  Groups groups_;
  std::vector<Event> events_;   // [op]
  std::vector<OpTimes> times_;  // [op]
  std::int32_t first_compute_ = -1;
  std::int64_t step_ = 0;
  double own_s_ = 0;  // of the step: work of this rank beside its compute stream (its samples, its part of the norm)
  Clock::time_point run_start_;
  Trace trace_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_ = false;
  std::array<std::unique_ptr<Stream>, kStreamKinds> streams_;  // last: their threads end before anything else goes
};

}  // namespace

std::string cause_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

std::string cause_of(const std::exception& error, int rank) {
  return dynamic_cast<const Error*>(&error) != nullptr ? error.what()
                                                       : fmt::format("rank {}: {}", rank, cause_of(error));
}

std::unique_ptr<RankRunner> make_rank_runner(const RunInputs& inputs, Transport& transport) {
  switch (inputs.request->precision.compute) {
    case RealType::fp64:
      return std::make_unique<Runner<double>>(inputs, transport);
    case RealType::fp32:
      return std::make_unique<Runner<float>>(inputs, transport);
    case RealType::bf16:
      return std::make_unique<Runner<Bf16>>(inputs, transport);
    case RealType::fp16:
      return std::make_unique<Runner<Fp16>>(inputs, transport);
  }
  throw Error("not a real type");
}

}  // namespace lamina
