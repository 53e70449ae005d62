#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "impl/base/error.h"
#include "impl/schedule/contract.h"
#include "impl/schedule/passes.h"

namespace lamina {
namespace {

// While a program grows, a slot number below zero stands for a value whose slot is chosen at the end.
using Value = std::int32_t;

// One rank's program while it is put together, in an order that every rank's executor could follow.
class Draft {
 public:
  Draft(const Plan& plan, const PartitionPlan& partition, const std::vector<ComputeOp>& order)
      : plan_(plan), partition_(partition), order_(order), op_of_compute_(order.size(), -1) {
    add_persistent_slots();
  }

  bool owns_head() const { return target_count_ >= 0; }

  // Ops added from here on are issued at this tick of the timeline.
  void advance_to(std::int64_t tick) { now_ = tick; }

  void begin_step() {
    if (owns_head()) {
      Op& op = add(OpKind::count, StreamKind::data);
      op.writes = {target_count_, loss_sum_};
      op.elements = 1;
    }
  }

  void start_compute(std::int32_t index, std::int64_t end) {
    add_partition_ops(partition_.before[at(index)]);
    const ComputeOp& compute = order_[at(index)];
    Op& op = add(compute.kind, StreamKind::compute);
    op.unit = compute.unit;
    op.part = part_of(compute.unit);
    op.micro_batch = compute.micro_batch;
    op.group = compute.group;
    op_of_compute_[at(index)] = op.id;
    ticks_[at(op.id)].end = end;
    switch (compute.kind) {
      case OpKind::forward:
        fill_forward(op, index);
        break;
      case OpKind::loss:
        fill_loss(op, index);
        break;
      default:
        fill_backward(op, index);
    }
  }

  void end_compute(std::int32_t index) { add_partition_ops(partition_.after[at(index)]); }

  // boundary: the unit whose input (forward) or input gradient (backward) travels.
  // allowance: ticks that the message may take without keeping a slot from its next user (see choose_slots).
  void send(const ComputeOp& what, Unit boundary, std::int64_t peer, std::int64_t allowance) {
    Op& op = add_transfer(OpKind::send, what, boundary, peer);
    ticks_[at(op.id)].end += allowance;
    op.reads = {what.kind == OpKind::forward ? checkpoint_.at({boundary, what.micro_batch})
                                             : activation_gradient_.at(what.micro_batch)};
  }
  void receive(const ComputeOp& what, Unit boundary, std::int64_t peer, std::int64_t allowance) {
    Op& op = add_transfer(OpKind::receive, what, boundary, peer);
    ticks_[at(op.id)].start -= allowance;
    if (what.kind == OpKind::forward) {
      op.writes = {new_checkpoint(boundary, what.micro_batch)};
    } else {
      op.writes = {new_activation_gradient(what.micro_batch)};
    }
  }

  void end_step() {
    if (owns_head()) {
      Op& total = add(OpKind::loss_total, StreamKind::data);
      total.reads = {loss_sum_};
      total.writes = {loss_sum_};
      total.elements = 1;
    }
    Op& norm = add(OpKind::norm, StreamKind::data);
    for (const auto& [unit, slot] : reduced_) {
      norm.reads.push_back(slot);
    }
    norm.writes = {gradient_norm_};
    norm.elements = 1;
    // In the order in which the reductions end, so that updates follow them without waiting for each other.
    for (const Unit unit : reduction_order_) {
      Op& op = add(OpKind::update, StreamKind::compute);
      op.unit = unit;
      op.part = part_of(unit);
      op.reads = {reduced_.at(unit)};
      if (plan_.update_after_norm) {
        op.reads.push_back(gradient_norm_);
      }
      op.writes = {plan_.zero_stage == 3 ? shard_.at(unit) : parameters_.at(unit)};
    }
  }

  Program finish() {
    choose_slots();
    add_waits();
    return {std::move(slots_), std::move(ops_)};
  }

 private:
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  static Part part_of(Unit unit) {
    return unit.kind == UnitKind::embedding ? Part::embedding : unit.kind == UnitKind::head ? Part::head : Part::whole;
  }

  Op& add(OpKind kind, StreamKind stream) {
    Op& op = ops_.emplace_back();
    op.id = static_cast<std::int32_t>(ops_.size()) - 1;
    op.kind = kind;
    op.stream = stream;
    op.unit = {UnitKind::layer, -1};
    after_.emplace_back(-1);
    ticks_.push_back({now_, now_});
    return op;
  }

  std::int32_t add_slot(SlotKind kind, Unit unit) {
    slots_.push_back({kind, unit});
    return static_cast<std::int32_t>(slots_.size()) - 1;
  }

  void add_persistent_slots() {
    const bool by_visit = plan_.zero_stage >= 2 && !plan_.keep_full_gradient;
    std::map<Unit, bool> units;
    for (const ComputeOp& op : order_) {
      units[op.unit] = true;
    }
    for (const auto& [unit, owned] : units) {
      const bool is_layer = unit.kind == UnitKind::layer;
      if (plan_.zero_stage == 3) {
        shard_[unit] = add_slot(SlotKind::parameter_shard, unit);
      }
      if (plan_.zero_stage < 3 || !is_layer) {
        parameters_[unit] = add_slot(SlotKind::parameters, unit);
      }
      if (by_visit) {
        reduced_[unit] = add_slot(SlotKind::gradient_shard, unit);
      }
      if (!by_visit || !is_layer) {
        gradient_[unit] = add_slot(SlotKind::gradient, unit);
      }
      if (!by_visit) {
        reduced_[unit] = gradient_[unit];
      }
    }
    for (std::int32_t i = 0; i < partition_.parameter_buffers; ++i) {
      parameter_buffer_.push_back(add_slot(SlotKind::parameters, layer_unit(0)));
    }
    for (std::int32_t i = 0; i < partition_.gradient_buffers; ++i) {
      gradient_buffer_.push_back(add_slot(SlotKind::gradient, layer_unit(0)));
    }
    if (units.contains(head_unit())) {
      target_count_ = add_slot(SlotKind::target_count, head_unit());
      loss_sum_ = add_slot(SlotKind::loss_sum, head_unit());
    }
    gradient_norm_ = add_slot(SlotKind::gradient_norm, head_unit());
  }

  Value new_value(SlotKind kind, Unit unit) {
    values_.push_back({kind, unit});
    return -static_cast<Value>(values_.size());
  }
  Value new_checkpoint(Unit unit, std::int32_t micro_batch) {
    return checkpoint_[{unit, micro_batch}] = new_value(SlotKind::checkpoint, layer_unit(0));
  }
  Value new_activation_gradient(std::int32_t micro_batch) {
    return activation_gradient_[micro_batch] = new_value(SlotKind::activation_gradient, layer_unit(0));
  }

  Value parameters_of(std::int32_t index) const {
    const std::int32_t buffer = partition_.parameter_buffer[at(index)];
    return buffer >= 0 ? parameter_buffer_[at(buffer)] : parameters_.at(order_[at(index)].unit);
  }
  Value gradient_of(std::int32_t index) const {
    const std::int32_t buffer = partition_.gradient_buffer[at(index)];
    return buffer >= 0 ? gradient_buffer_[at(buffer)] : gradient_.at(order_[at(index)].unit);
  }
  Unit unit_after(Unit unit) const {
    if (unit.kind == UnitKind::embedding) {
      return layer_unit(0);
    }
    return unit.layer + 1 == plan_.model.layers ? head_unit() : layer_unit(unit.layer + 1);
  }

  void fill_forward(Op& op, std::int32_t index) {
    op.reads = {parameters_of(index)};
    if (op.unit.kind == UnitKind::layer) {
      op.reads.push_back(checkpoint_.at({op.unit, op.micro_batch}));
    }
    op.writes = {new_checkpoint(unit_after(op.unit), op.micro_batch)};
    if (op.unit.kind == UnitKind::layer) {
      const Value saved = new_value(SlotKind::saved, layer_unit(0));
      op.writes.push_back(saved);
      saved_[{op.unit, op.micro_batch}] = saved;
    }
  }

  void fill_loss(Op& op, std::int32_t index) {
    op.accumulate = partition_.accumulate[at(index)];
    op.reads = {parameters_of(index), checkpoint_.at({op.unit, op.micro_batch}), target_count_, loss_sum_};
    op.writes = {new_activation_gradient(op.micro_batch), gradient_of(index), loss_sum_,
                 new_value(SlotKind::saved, head_unit())};
  }

  void fill_backward(Op& op, std::int32_t index) {
    op.accumulate = partition_.accumulate[at(index)];
    const Value activation_gradient = activation_gradient_.at(op.micro_batch);
    if (op.unit.kind == UnitKind::embedding) {
      op.reads = {activation_gradient};
      op.writes = {gradient_of(index)};
      return;
    }
    op.reads = {parameters_of(index), checkpoint_.at({op.unit, op.micro_batch}), activation_gradient};
    op.writes = {activation_gradient, gradient_of(index)};
    if (plan_.recompute == Recompute::full) {
      op.writes.push_back(new_value(SlotKind::saved, layer_unit(0)));
    } else {
      op.reads.push_back(saved_.at({op.unit, op.micro_batch}));
    }
  }

  Op& add_transfer(OpKind kind, const ComputeOp& what, Unit boundary, std::int64_t peer) {
    Op& op = add(kind, stream_of(kind, what.kind == OpKind::backward));
    op.unit = boundary;
    op.part = part_of(boundary);
    op.micro_batch = what.micro_batch;
    op.group = what.group;
    op.peer = static_cast<std::int32_t>(peer);
    op.elements = plan_.micro_batch_size * plan_.model.sequence * plan_.model.hidden;
    return op;
  }

  void add_partition_ops(const std::vector<PartitionOp>& partition_ops) {
    for (const PartitionOp& what : partition_ops) {
      Op& op = add(what.kind, StreamKind::data);
      op.unit = what.unit;
      op.part = part_of(what.unit);
      op.accumulate = what.accumulate;
      op.elements = padded(unit_parameters(plan_.model, what.unit), plan_.parallel.data);
      if (what.kind == OpKind::gather) {
        const Value whole = what.buffer >= 0 ? parameter_buffer_[at(what.buffer)] : parameters_.at(what.unit);
        op.reads = {plan_.zero_stage == 3 ? shard_.at(what.unit) : whole};
        op.writes = {whole};
        after_.back() = what.not_before;
      } else {
        op.reads = {what.buffer >= 0 ? gradient_buffer_[at(what.buffer)] : gradient_.at(what.unit)};
        op.writes = {reduced_.at(what.unit)};
        std::erase(reduction_order_, what.unit);
        reduction_order_.push_back(what.unit);
      }
    }
  }

  // A value takes the slot of its kind that has been free for longest, from its first use to its last. A slot is free
  // once its last user ends in the timeline, where a message is given a whole allowance: it takes its slot that much
  // earlier on the receiving side and keeps it that much longer on the sending side. So a receive need not wait for
  // compute, nor compute for a send, while messages take no longer than that.
  void choose_slots() {
    std::vector<std::int32_t> last_use(values_.size(), -1);
    for (const Op& op : ops_) {
      for (const auto* list : {&op.reads, &op.writes}) {
        for (const Value value : *list) {
          if (value < 0) {
            last_use[at(-value - 1)] = op.id;
          }
        }
      }
    }
    std::vector<std::int32_t> slot_of(values_.size(), -1);
    struct Free {
      std::int32_t slot = -1;
      std::int64_t since = 0;
    };
    std::map<std::pair<SlotKind, Unit>, std::vector<Free>> free;
    for (Op& op : ops_) {
      std::vector<std::int32_t> released;
      for (auto* list : {&op.reads, &op.writes}) {
        for (Value& value : *list) {
          if (value >= 0) {
            continue;
          }
          const std::size_t index = at(-value - 1);
          const Slot& what = values_[index];
          if (slot_of[index] < 0) {
            auto& candidates = free[{what.kind, what.unit}];
            const auto chosen = std::find_if(candidates.begin(), candidates.end(), [&](const Free& candidate) {
              return candidate.since <= ticks_[at(op.id)].start;
            });
            if (chosen == candidates.end()) {
              slot_of[index] = add_slot(what.kind, what.unit);
            } else {
              slot_of[index] = chosen->slot;
              candidates.erase(chosen);
            }
          }
          value = slot_of[index];
          if (last_use[index] == op.id) {
            released.push_back(static_cast<std::int32_t>(index));
            last_use[index] = -1;  // an op that reads and writes the value releases it once
          }
        }
      }
      for (const std::int32_t index : released) {
        const Slot& what = values_[at(index)];
        free[{what.kind, what.unit}].push_back({slot_of[at(index)], ticks_[at(op.id)].end});
      }
    }
  }

  // Waits that keep each slot's reads behind the write they need and each write behind the reads and the write before
  // it. What the stream's own order or an earlier wait already ensures is left out.
  void add_waits() {
    struct Users {
      std::int32_t writer = -1;
      std::vector<std::int32_t> readers;
    };
    std::vector<Users> users(slots_.size());
    std::array<std::array<std::int32_t, kStreamKinds>, kStreamKinds> known{};
    for (auto& row : known) {
      row.fill(-1);
    }
    for (Op& op : ops_) {
      std::array<std::int32_t, kStreamKinds> latest{};
      latest.fill(-1);
      const auto need = [&](std::int32_t id) {
        if (id >= 0) {
          auto& entry = latest[static_cast<std::size_t>(ops_[at(id)].stream)];
          entry = std::max(entry, id);
        }
      };
      for (const std::int32_t slot : op.reads) {
        need(users[at(slot)].writer);
      }
      for (const std::int32_t slot : op.writes) {
        need(users[at(slot)].writer);
        for (const std::int32_t reader : users[at(slot)].readers) {
          need(reader);
        }
      }
      if (const std::int32_t compute = after_[at(op.id)]; compute >= 0) {
        need(op_of_compute_[at(compute)]);
      }
      auto& known_here = known[static_cast<std::size_t>(op.stream)];
      for (std::size_t stream = 0; stream < kStreamKinds; ++stream) {
        if (static_cast<StreamKind>(stream) != op.stream && latest[stream] > known_here[stream]) {
          op.waits.push_back(latest[stream]);
          known_here[stream] = latest[stream];
        }
      }
      for (const std::int32_t slot : op.reads) {
        users[at(slot)].readers.push_back(op.id);
      }
      for (const std::int32_t slot : op.writes) {
        users[at(slot)] = {op.id, {}};
      }
    }
  }

  const Plan& plan_;
  const PartitionPlan& partition_;
  const std::vector<ComputeOp>& order_;
  std::vector<Slot> slots_;
  std::vector<Op> ops_;
  std::vector<Timing> ticks_;  // [op]: when it takes its slots and gives them back
  std::int64_t now_ = 0;
  std::vector<std::int32_t> after_;          // [op]: compute op that it waits for besides its slots' users
  std::vector<std::int32_t> op_of_compute_;  // [compute op]: its id
  std::vector<Slot> values_;                 // what kind of slot a value needs

  std::map<Unit, std::int32_t> parameters_, shard_, gradient_;
  std::map<Unit, std::int32_t> reduced_;  // where the reduced gradient is: the gradient itself or its shard
  std::vector<std::int32_t> parameter_buffer_, gradient_buffer_;
  std::int32_t target_count_ = -1, loss_sum_ = -1, gradient_norm_ = -1;
  std::map<std::pair<Unit, std::int32_t>, Value> checkpoint_, saved_;
  std::map<std::int32_t, Value> activation_gradient_;
  std::vector<Unit> reduction_order_;
};

// The owner of the unit that continues behind a compute op, and the boundary that is crossed to it.
struct Successor {
  std::int64_t rank = 0;
  Unit boundary;
};
Successor successor_of(const ComputeOp& op, const std::vector<std::int64_t>& owner, std::int64_t here) {
  const auto last = static_cast<std::int32_t>(owner.size()) - 1;
  if (op.unit.kind == UnitKind::layer && op.kind == OpKind::forward && op.unit.layer < last) {
    return {owner[static_cast<std::size_t>(op.unit.layer) + 1], layer_unit(op.unit.layer + 1)};
  }
  if (op.unit.kind == UnitKind::layer && op.kind == OpKind::backward && op.unit.layer > 0) {
    return {owner[static_cast<std::size_t>(op.unit.layer) - 1], op.unit};
  }
  return {here, op.unit};
}

// The most consecutive layers that one rank owns.
std::int64_t longest_run(const std::vector<std::int64_t>& owner) {
  std::int64_t longest = 1;
  std::int64_t run = 1;
  for (std::size_t layer = 1; layer < owner.size(); ++layer) {
    run = owner[layer] == owner[layer - 1] ? run + 1 : 1;
    longest = std::max(longest, run);
  }
  return longest;
}

struct TimelineEvent {
  std::int64_t tick = 0;
  bool start = false;  // ends come before starts of the same tick
  std::int32_t rank = 0;
  std::int32_t index = 0;
  auto operator<=>(const TimelineEvent&) const = default;
};

std::vector<TimelineEvent> events_of(const std::vector<std::vector<Timing>>& timeline) {
  std::vector<TimelineEvent> events;
  for (std::int32_t rank = 0; rank < std::ssize(timeline); ++rank) {
    const auto& timings = timeline[static_cast<std::size_t>(rank)];
    for (std::int32_t i = 0; i < std::ssize(timings); ++i) {
      events.push_back({timings[static_cast<std::size_t>(i)].start, true, rank, i});
      events.push_back({timings[static_cast<std::size_t>(i)].end, false, rank, i});
    }
  }
  std::sort(events.begin(), events.end());
  return events;
}

}  // namespace

Schedule assemble(const Plan& plan, const std::vector<std::int64_t>& owner,
                  const std::vector<std::vector<ComputeOp>>& order, const std::vector<std::vector<Timing>>& timeline,
                  const std::vector<PartitionPlan>& partitions) {
  std::vector<Draft> drafts;
  drafts.reserve(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    drafts.emplace_back(plan, partitions[rank], order[rank]).begin_step();
  }
  const std::int64_t layers_a_pass = longest_run(owner);
  for (const TimelineEvent& event : events_of(timeline)) {
    Draft& draft = drafts[static_cast<std::size_t>(event.rank)];
    const Timing& timing = timeline[static_cast<std::size_t>(event.rank)][static_cast<std::size_t>(event.index)];
    draft.advance_to(event.tick);
    if (event.start) {
      draft.start_compute(event.index, timing.end);
      continue;
    }
    const ComputeOp& op = order[static_cast<std::size_t>(event.rank)][static_cast<std::size_t>(event.index)];
    const Successor next = successor_of(op, owner, event.rank);
    if (next.rank != event.rank) {
      // A message may take as long as a rank's compute between two messages.
      const std::int64_t allowance = layers_a_pass * (timing.end - timing.start);
      Draft& receiver = drafts[static_cast<std::size_t>(next.rank)];
      receiver.advance_to(event.tick);
      draft.send(op, next.boundary, next.rank, allowance);
      receiver.receive(op, next.boundary, event.rank, allowance);
    }
    draft.end_compute(event.index);
  }
  Schedule schedule{.plan = plan, .programs = {}};
  for (Draft& draft : drafts) {
    draft.end_step();
    schedule.programs.push_back(draft.finish());
  }
  return schedule;
}

}  // namespace lamina
