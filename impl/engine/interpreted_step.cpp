#include "impl/engine/interpreted_step.h"

#include <algorithm>
#include <cmath>

#include "impl/base/error.h"
#include "impl/engine/rank_state.h"
#include "impl/schedule/interpreter.h"

namespace lamina {
namespace {

class ModelArithmetic : public Arithmetic {
 public:
  ModelArithmetic(const Schedule& schedule, const OptimizerConfig& optimizer, const TokenSource& source,
                  std::int64_t seed, const std::map<std::string, NamedTensor>* tensors)
      : plan_(schedule.plan) {
    for (std::int64_t pipeline = 0; pipeline < plan_.parallel.pipeline; ++pipeline) {
      for (std::int64_t data = 0; data < plan_.parallel.data; ++data) {
        auto& state = ranks_.emplace_back(std::make_unique<RankState<double>>(
            schedule, pipeline, data, optimizer, precision_of(RealType::fp64), seed, tensors, 1));
        state->load(source, 0);
      }
    }
  }

  RankState<double>& rank(std::int32_t place) { return *ranks_[static_cast<std::size_t>(place)]; }
  std::int32_t ranks() const { return static_cast<std::int32_t>(ranks_.size()); }

  // What a message or a collective takes from a rank is what is there when it begins.
  void begin(std::int32_t place, const Op& op) override {
    std::vector<double>& taken = taken_[{place, op.id}];
    switch (op.kind) {
      case OpKind::send:
      case OpKind::gather: {
        const std::span<double> values = rank(place).stored(op.reads[0]);
        taken.assign(values.begin(), values.end());
        return;
      }
      case OpKind::reduce:
      case OpKind::all_reduce: {
        const std::span<double> values = rank(place).gradient(op.reads[0]);
        taken.assign(values.begin(), values.end());
        return;
      }
      case OpKind::count:
        taken = {static_cast<double>(rank(place).counted_targets())};
        return;
      case OpKind::norm:
        taken = {rank(place).own_sum_of_squares()};
        return;
      case OpKind::loss_total:
        taken = {rank(place).scalar(op.reads[0])};
        return;
      default:
        return;
    }
  }

  void compute(std::int32_t place, const Op& op) override { rank(place).compute(op); }

  void deliver(std::int32_t source, const Op& send, std::int32_t destination, const Op& receive) override {
    const std::vector<double>& sent = taken_.at({source, send.id});
    std::copy(sent.begin(), sent.end(), rank(destination).stored(receive.writes[0]).begin());
  }

  void collect(std::int32_t place, const Op& op, std::span<const Progress::Member> members) override {
    switch (op.kind) {
      case OpKind::gather:
        return gather(place, op, members);
      case OpKind::reduce:
        return reduce(place, op, members);
      case OpKind::all_reduce: {
        const std::vector<double> total = sum(members);
        std::copy(total.begin(), total.end(), rank(place).gradient(op.writes[0]).begin());
        return;
      }
      case OpKind::count:
        rank(place).scalar(op.writes[1]) = 0;
        [[fallthrough]];
      case OpKind::loss_total:
        rank(place).scalar(op.writes[0]) = sum(members)[0];
        return;
      case OpKind::norm:
        rank(place).scalar(op.writes[0]) = std::sqrt(sum(members)[0]);
        return;
      default:
        LAMINA_CHECK(false, "{} is not a collective", describe(op));
    }
  }

 private:
  const std::vector<double>& taken(const Progress::Member& member) const {
    return taken_.at({member.first, member.second->id});
  }

  // In the order of ranks, whatever the order in which they began.
  std::vector<double> sum(std::span<const Progress::Member> members) const {
    std::vector<Progress::Member> ordered(members.begin(), members.end());
    std::sort(ordered.begin(), ordered.end());
    std::vector<double> total(taken(ordered[0]).size());
    for (const Progress::Member& member : ordered) {
      std::transform(total.begin(), total.end(), taken(member).begin(), total.begin(), std::plus<>());
    }
    return total;
  }

  std::int64_t part_size(const Op& op) const { return op.elements / plan_.parallel.data; }

  void gather(std::int32_t place, const Op& op, std::span<const Progress::Member> members) {
    const std::span<double> whole = rank(place).stored(op.writes[0]);
    for (const Progress::Member& member : members) {
      const std::vector<double>& from = taken(member);
      const std::int64_t begin = rank(member.first).data_rank() * part_size(op);
      const std::int64_t offset = std::ssize(from) == part_size(op) ? 0 : begin;
      std::copy_n(from.begin() + offset, part_size(op), whole.begin() + begin);
    }
  }

  void reduce(std::int32_t place, const Op& op, std::span<const Progress::Member> members) {
    const std::vector<double> total = sum(members);
    const std::span<double> to = rank(place).gradient(op.writes[0]);
    const std::int64_t begin = rank(place).data_rank() * part_size(op);
    if (op.reads[0] == op.writes[0]) {
      std::fill(to.begin(), to.end(), std::nan(""));  // what the rank does not own may not be used
      std::copy_n(total.begin() + begin, part_size(op), to.begin() + begin);
      return;
    }
    for (std::int64_t i = 0; i < part_size(op); ++i) {
      double& value = to[static_cast<std::size_t>(i)];
      value = (op.accumulate ? value : 0.0) + total[static_cast<std::size_t>(begin + i)];
    }
  }

  const Plan& plan_;
  std::vector<std::unique_ptr<RankState<double>>> ranks_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<double>> taken_;
};

void collect_own(RankState<double>& rank, InterpretedStep& step) {
  for (const Unit unit : rank.units()) {
    const ElementRange range = rank.own_range(unit);
    const auto put = [&](std::vector<double>& whole, std::span<const double> part) {
      whole.resize(static_cast<std::size_t>(unit_parameters(rank.plan().model, unit)));
      std::copy(part.begin(), part.end(), whole.begin() + range.begin);
    };
    put(step.gradients[unit], rank.own_gradient(unit));
    put(step.parameters[unit], rank.own_parameters(unit));
  }
}

}  // namespace

InterpretedStep interpret_step(const Schedule& schedule, const OptimizerConfig& optimizer, const TokenSource& source,
                               std::int64_t seed, const std::map<std::string, NamedTensor>* tensors,
                               std::uint64_t interleaving) {
  ModelArithmetic arithmetic(schedule, optimizer, source, seed, tensors);
  const Interpretation done =
      interpret(schedule, static_cast<std::int32_t>(schedule.plan.parallel.data), interleaving, arithmetic);
  LAMINA_CHECK(done.completed, "the schedule stalls at {}", done.stalled_at);
  InterpretedStep step;
  for (std::int32_t place = 0; place < arithmetic.ranks(); ++place) {
    RankState<double>& rank = arithmetic.rank(place);
    collect_own(rank, step);
    double count = 0;
    for (const Op& op : rank.program().ops) {
      if (op.kind == OpKind::count) {
        count = rank.scalar(op.writes[0]);
      } else if (op.kind == OpKind::loss_total) {
        step.loss = rank.scalar(op.writes[0]) / count;
      } else if (op.kind == OpKind::norm) {
        step.gradient_norm = rank.scalar(op.writes[0]);
      }
    }
  }
  return step;
}

}  // namespace lamina
