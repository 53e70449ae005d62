#include "tests/unit/toy_arithmetic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace lamina::toy {
namespace {

constexpr std::int64_t kParameters = 3;
constexpr double kLearningRate = 0.1;
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

struct CannotBeDone : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Values = std::vector<double>;

double input(std::int64_t data, std::int64_t micro_batch) {
  return std::sin(1.0 + 3.7 * static_cast<double>(data) + 1.3 * static_cast<double>(micro_batch));
}
double target(std::int64_t data, std::int64_t micro_batch) {
  return std::cos(0.3 + 2.1 * static_cast<double>(data) + 0.7 * static_cast<double>(micro_batch));
}
double counted(std::int64_t data, std::int64_t micro_batch) {
  return 1.0 + static_cast<double>((3 * data + micro_batch) % 4);
}
double initial(Unit unit, std::int64_t index) {
  const double number = unit.kind == UnitKind::layer ? unit.layer : unit.kind == UnitKind::embedding ? -1.5 : -2.5;
  return 0.5 * std::sin(1.0 + 1.7 * number + 0.9 * static_cast<double>(index));
}

// y = tanh(a·x + b) + c·x
struct Cell {
  double t, y;
};
Cell cell(const double* p, double x) {
  const double t = std::tanh(p[0] * x + p[1]);
  return {t, t + p[2] * x};
}
// Adds to the gradient of (a, b, c) and returns the gradient of x.
double cell_backward(const double* p, double x, double t, double dy, double* gradient) {
  const double dt = dy * (1.0 - t * t);
  gradient[0] += dt * x;
  gradient[1] += dt;
  gradient[2] += dy * x;
  return dt * p[0] + dy * p[2];
}
double embed(const double* p, double u) { return p[0] * u + p[1] + p[2] * u * u; }
void embed_backward(double u, double dy, double* gradient) {
  gradient[0] += dy * u;
  gradient[1] += dy;
  gradient[2] += dy * u * u;
}
double update_scale(const Plan& plan, double norm) { return plan.update_after_norm ? 1.0 / (1.0 + norm) : 1.0; }

class ToyArithmetic : public Arithmetic {
 public:
  explicit ToyArithmetic(const Schedule& schedule) : schedule_(schedule), plan_(schedule.plan) {
    for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
      for (std::int64_t data = 0; data < plan_.parallel.data; ++data) {
        auto& memory = memory_.emplace_back();
        for (const Slot& slot : schedule.programs[rank].slots) {
          memory.push_back(initial_values(slot, data));
        }
        seen_.emplace_back(schedule.programs[rank].ops.size());
      }
    }
  }

  void begin(std::int32_t place, const Op& op) override {
    Seen& seen = seen_of(place, op);
    seen.reads.clear();
    seen.writes.clear();
    for (const std::int32_t slot : op.reads) {
      seen.reads.push_back(memory(place, slot));
    }
    for (const std::int32_t slot : op.writes) {
      seen.writes.push_back(memory(place, slot));
    }
  }

  void compute(std::int32_t place, const Op& op) override {
    switch (op.kind) {
      case OpKind::forward:
        return forward(place, op);
      case OpKind::loss:
        return loss(place, op);
      case OpKind::backward:
        return backward(place, op);
      case OpKind::update:
        return update(place, op);
      default:
        throw CannotBeDone("no such compute op");
    }
  }

  void deliver(std::int32_t source, const Op& send, std::int32_t destination, const Op& receive) override {
    const Values& sent = read(source, send, 0);
    Values& received = written(destination, receive, 0);
    if (sent.size() != received.size()) {
      throw CannotBeDone("message of another size");
    }
    received = sent;
  }

  void collect(std::int32_t place, const Op& op, std::span<const Progress::Member> members) override {
    for (const auto& [other, other_op] : members) {
      if (other_op->kind != op.kind || other_op->unit != op.unit) {
        throw CannotBeDone("different collectives meet");
      }
    }
    switch (op.kind) {
      case OpKind::gather:
        return gather(place, op, members);
      case OpKind::reduce:
      case OpKind::all_reduce:
        return reduce(place, op, members);
      case OpKind::count: {
        double sum = 0;
        for (const auto& [other, other_op] : members) {
          for (std::int64_t i = 0; i < plan_.micro_batches; ++i) {
            sum += counted(data_of(other), i);
          }
        }
        scalar(place, op, 0) = sum;
        scalar(place, op, 1) = 0;
        return;
      }
      case OpKind::norm:
        return norm(place, op, members);
      case OpKind::loss_total: {
        double sum = 0;
        for (const auto& [other, other_op] : members) {
          sum += read(other, *other_op, 0).at(0);
        }
        scalar(place, op, 0) = sum;
        return;
      }
      default:
        throw CannotBeDone("no such collective");
    }
  }

  Outcome outcome() const {
    Outcome result;
    const std::int64_t copies = plan_.parallel.data;
    for (std::int32_t place = 0; place < std::ssize(memory_); ++place) {
      const Program& program = schedule_.programs[static_cast<std::size_t>(place / copies)];
      const std::int64_t data = place % copies;
      for (const Op& op : program.ops) {
        if (op.kind == OpKind::update) {
          collect_parameters(result, op.unit, data, values(place, op.writes.at(0)));
        }
      }
      for (std::size_t slot = 0; slot < program.slots.size(); ++slot) {
        const Values& held = values(place, static_cast<std::int32_t>(slot));
        if (program.slots[slot].kind == SlotKind::loss_sum) {
          result.loss.push_back(held[0]);
        } else if (program.slots[slot].kind == SlotKind::gradient_norm) {
          result.norm.push_back(held[0]);
        }
      }
    }
    for (auto& [unit, parameters] : result.parameters) {
      parameters.resize(kParameters);
    }
    return result;
  }

 private:
  struct Seen {
    std::vector<Values> reads, writes;
  };

  std::int64_t data_of(std::int32_t place) const { return place % plan_.parallel.data; }
  std::int64_t whole() const { return padded(kParameters, plan_.parallel.data); }
  std::int64_t part() const { return whole() / plan_.parallel.data; }
  Seen& seen_of(std::int32_t place, const Op& op) {
    return seen_[static_cast<std::size_t>(place)][static_cast<std::size_t>(op.id)];
  }
  Values& memory(std::int32_t place, std::int32_t slot) {
    return memory_[static_cast<std::size_t>(place)].at(static_cast<std::size_t>(slot));
  }
  const Values& values(std::int32_t place, std::int32_t slot) const {
    return memory_[static_cast<std::size_t>(place)].at(static_cast<std::size_t>(slot));
  }
  // What the op saw when it began.
  const Values& read(std::int32_t place, const Op& op, std::size_t i) { return seen_of(place, op).reads.at(i); }
  const Values& base(std::int32_t place, const Op& op, std::size_t i) { return seen_of(place, op).writes.at(i); }
  Values& written(std::int32_t place, const Op& op, std::size_t i) { return memory(place, op.writes.at(i)); }
  double& scalar(std::int32_t place, const Op& op, std::size_t i) { return written(place, op, i).at(0); }

  Values initial_values(const Slot& slot, std::int64_t data) const {
    const auto filled = [&](std::int64_t begin, std::int64_t end, std::int64_t offset, std::int64_t size) {
      Values values(static_cast<std::size_t>(size), kNothing);
      for (std::int64_t i = begin; i < end; ++i) {
        values[static_cast<std::size_t>(i - offset)] = i < kParameters ? initial(slot.unit, i) : 0.0;
      }
      return values;
    };
    switch (slot.kind) {
      case SlotKind::parameters:
        if (plan_.zero_stage == 0) {
          return filled(0, whole(), 0, whole());
        }
        return plan_.zero_stage == 3 ? filled(0, 0, 0, whole())
                                     : filled(data * part(), (data + 1) * part(), 0, whole());
      case SlotKind::parameter_shard:
        return filled(data * part(), (data + 1) * part(), data * part(), part());
      case SlotKind::gradient:
        return filled(0, 0, 0, whole());
      case SlotKind::gradient_shard:
        return filled(0, 0, 0, part());
      case SlotKind::saved:
        return filled(0, 0, 0, 2);
      default:
        return {kNothing};
    }
  }

  // Where the op adds its gradient: a copy of what was there, or zeros.
  Values gradient_base(std::int32_t place, const Op& op, std::size_t i) {
    Values gradient = base(place, op, i);
    if (std::ssize(gradient) != whole()) {
      throw CannotBeDone("not a gradient");
    }
    if (!op.accumulate) {
      std::fill(gradient.begin(), gradient.end(), 0.0);
    }
    return gradient;
  }
  const double* parameters(std::int32_t place, const Op& op) {
    const Values& held = read(place, op, 0);
    if (std::ssize(held) != whole()) {
      throw CannotBeDone("not parameters");
    }
    return held.data();
  }

  void forward(std::int32_t place, const Op& op) {
    if (op.unit.kind == UnitKind::embedding) {
      scalar(place, op, 0) = embed(parameters(place, op), input(data_of(place), op.micro_batch));
      return;
    }
    const double x = read(place, op, 1).at(0);
    const Cell result = cell(parameters(place, op), x);
    scalar(place, op, 0) = result.y;
    written(place, op, 1) = {result.t, x};
  }

  void loss(std::int32_t place, const Op& op) {
    const double x = read(place, op, 1).at(0);
    const double* p = parameters(place, op);
    const Cell result = cell(p, x);
    const double difference = result.y - target(data_of(place), op.micro_batch);
    const double weight = counted(data_of(place), op.micro_batch);
    Values gradient = gradient_base(place, op, 1);
    const double dy = 2.0 * weight * difference / read(place, op, 2).at(0);
    scalar(place, op, 0) = cell_backward(p, x, result.t, dy, gradient.data());
    written(place, op, 1) = gradient;
    scalar(place, op, 2) = base(place, op, 2).at(0) + weight * difference * difference;
    written(place, op, 3) = {kNothing, kNothing};
  }

  void backward(std::int32_t place, const Op& op) {
    if (op.unit.kind == UnitKind::embedding) {
      Values gradient = gradient_base(place, op, 0);
      embed_backward(input(data_of(place), op.micro_batch), read(place, op, 0).at(0), gradient.data());
      written(place, op, 0) = gradient;
      return;
    }
    const double x = read(place, op, 1).at(0);
    const double* p = parameters(place, op);
    double t = 0;
    if (plan_.recompute == Recompute::full) {
      t = cell(p, x).t;
      written(place, op, 2) = {t, x};
    } else {
      t = read(place, op, 3).at(0);
    }
    Values gradient = gradient_base(place, op, 1);
    scalar(place, op, 0) = cell_backward(p, x, t, read(place, op, 2).at(0), gradient.data());
    written(place, op, 1) = gradient;
  }

  void gather(std::int32_t place, const Op& op, std::span<const Progress::Member> members) {
    Values result(static_cast<std::size_t>(whole()), kNothing);
    for (const auto& [other, other_op] : members) {
      const Values& from = read(other, *other_op, 0);
      const std::int64_t begin = data_of(other) * part();
      for (std::int64_t i = 0; i < part(); ++i) {
        result[static_cast<std::size_t>(begin + i)] =
            from.at(static_cast<std::size_t>(plan_.zero_stage == 3 ? i : begin + i));
      }
    }
    written(place, op, 0) = result;
  }

  void reduce(std::int32_t place, const Op& op, std::span<const Progress::Member> members) {
    const bool in_place = op.reads.at(0) == op.writes.at(0);
    const bool everywhere = op.kind == OpKind::all_reduce;
    const std::int64_t begin = everywhere ? 0 : data_of(place) * part();
    const std::int64_t count = everywhere ? whole() : part();
    const std::int64_t offset = in_place ? 0 : begin;
    Values result(static_cast<std::size_t>(in_place ? whole() : part()), kNothing);
    for (std::int64_t i = begin; i < begin + count; ++i) {
      double sum = op.accumulate ? base(place, op, 0).at(static_cast<std::size_t>(i - offset)) : 0.0;
      for (const auto& [other, other_op] : members) {
        sum += read(other, *other_op, 0).at(static_cast<std::size_t>(i));
      }
      result.at(static_cast<std::size_t>(i - offset)) = sum;
    }
    written(place, op, 0) = result;
  }

  // Every rank adds its own part of every unit it holds; padding stays out.
  void norm(std::int32_t place, const Op& op, std::span<const Progress::Member> members) {
    double sum = 0;
    for (const auto& [other, other_op] : members) {
      const std::int64_t begin = data_of(other) * part();
      for (std::size_t i = 0; i < other_op->reads.size(); ++i) {
        const Values& gradient = read(other, *other_op, i);
        const std::int64_t offset = std::ssize(gradient) == whole() && whole() != part() ? 0 : begin;
        for (std::int64_t j = begin; j < std::min(begin + part(), kParameters); ++j) {
          const double value = gradient.at(static_cast<std::size_t>(j - offset));
          sum += value * value;
        }
      }
    }
    scalar(place, op, 0) = std::sqrt(sum);
  }

  void update(std::int32_t place, const Op& op) {
    const Values& gradient = read(place, op, 0);
    Values parameters = base(place, op, 0);
    const double scale = update_scale(plan_, plan_.update_after_norm ? read(place, op, 1).at(0) : 0.0);
    const std::int64_t begin = plan_.zero_stage == 0 ? 0 : data_of(place) * part();
    const std::int64_t end = plan_.zero_stage == 0 ? whole() : begin + part();
    const std::int64_t gradient_offset = std::ssize(gradient) == whole() ? 0 : begin;
    const std::int64_t parameter_offset = std::ssize(parameters) == whole() ? 0 : begin;
    for (std::int64_t i = begin; i < end; ++i) {
      parameters.at(static_cast<std::size_t>(i - parameter_offset)) -=
          kLearningRate * scale * gradient.at(static_cast<std::size_t>(i - gradient_offset));
    }
    written(place, op, 0) = parameters;
  }

  void collect_parameters(Outcome& result, Unit unit, std::int64_t data, const Values& held) const {
    Values& all = result.parameters[unit];
    all.resize(static_cast<std::size_t>(whole()), kNothing);
    if (plan_.zero_stage == 0) {
      // Every copy must hold the same; a copy that differs shows as no number.
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i] = data == 0 || std::abs(all[i] - held.at(i)) <= 1e-12 ? held.at(i) : kNothing;
      }
      return;
    }
    const std::int64_t begin = data * part();
    for (std::int64_t i = 0; i < part(); ++i) {
      all.at(static_cast<std::size_t>(begin + i)) =
          held.at(static_cast<std::size_t>(std::ssize(held) == whole() ? begin + i : i));
    }
  }

  const Schedule& schedule_;
  const Plan& plan_;
  std::vector<std::vector<Values>> memory_;  // [place][slot]
  std::vector<std::vector<Seen>> seen_;      // [place][op]
};

bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * (1.0 + std::abs(b)); }

}  // namespace

Outcome reference(const Plan& plan) {
  Outcome outcome;
  std::map<Unit, Values> gradients;
  double count = 0;
  for (const Unit unit : all_units(plan.model)) {
    for (std::int64_t i = 0; i < kParameters; ++i) {
      outcome.parameters[unit].push_back(initial(unit, i));
    }
    gradients[unit].assign(kParameters, 0.0);
  }
  for (std::int64_t data = 0; data < plan.parallel.data; ++data) {
    for (std::int64_t i = 0; i < plan.micro_batches; ++i) {
      count += counted(data, i);
    }
  }
  double loss = 0;
  for (std::int64_t data = 0; data < plan.parallel.data; ++data) {
    for (std::int64_t i = 0; i < plan.micro_batches; ++i) {
      std::vector<double> x{embed(outcome.parameters[embedding_unit()].data(), input(data, i))};
      std::vector<double> t;
      for (std::int64_t layer = 0; layer < plan.model.layers; ++layer) {
        const Cell result = cell(outcome.parameters[layer_unit(layer)].data(), x.back());
        t.push_back(result.t);
        x.push_back(result.y);
      }
      const double* head = outcome.parameters[head_unit()].data();
      const Cell result = cell(head, x.back());
      const double difference = result.y - target(data, i);
      loss += counted(data, i) * difference * difference;
      double dy = cell_backward(head, x.back(), result.t, 2.0 * counted(data, i) * difference / count,
                                gradients[head_unit()].data());
      for (std::int64_t layer = plan.model.layers - 1; layer >= 0; --layer) {
        const Unit unit = layer_unit(layer);
        dy = cell_backward(outcome.parameters[unit].data(), x[static_cast<std::size_t>(layer)],
                           t[static_cast<std::size_t>(layer)], dy, gradients[unit].data());
      }
      embed_backward(input(data, i), dy, gradients[embedding_unit()].data());
    }
  }
  double squares = 0;
  for (const auto& [unit, gradient] : gradients) {
    for (const double value : gradient) {
      squares += value * value;
    }
  }
  const double norm = std::sqrt(squares);
  for (auto& [unit, parameters] : outcome.parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i] -= kLearningRate * update_scale(plan, norm) * gradients[unit][i];
    }
  }
  outcome.loss = {loss};
  outcome.norm = {norm};
  return outcome;
}

Result run(const Schedule& schedule, std::uint64_t seed) {
  Result result;
  try {
    ToyArithmetic arithmetic(schedule);
    const Interpretation done =
        interpret(schedule, static_cast<std::int32_t>(schedule.plan.parallel.data), seed, arithmetic);
    result.stalled = !done.completed;
    result.stalled_at = done.stalled_at;
    result.outcome = arithmetic.outcome();
  } catch (const CannotBeDone&) {
    result.outcome.valid = false;
  } catch (const std::out_of_range&) {
    result.outcome.valid = false;
  }
  return result;
}

bool same(const Outcome& outcome, const Outcome& reference) {
  if (!outcome.valid || outcome.parameters.size() != reference.parameters.size() || outcome.loss.empty()) {
    return false;
  }
  for (const auto& [unit, parameters] : reference.parameters) {
    const auto found = outcome.parameters.find(unit);
    if (found == outcome.parameters.end()) {
      return false;
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!close(found->second[i], parameters[i])) {
        return false;
      }
    }
  }
  const auto all_close = [](const Values& values, double wanted) {
    return std::all_of(values.begin(), values.end(), [&](double value) { return close(value, wanted); });
  };
  return all_close(outcome.loss, reference.loss[0]) && all_close(outcome.norm, reference.norm[0]);
}

bool goes_wrong(const Schedule& schedule, const Outcome& reference, std::uint64_t seeds) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Result result = run(schedule, seed);
    if (result.stalled || !same(result.outcome, reference)) {
      return true;
    }
  }
  return false;
}

}  // namespace lamina::toy
