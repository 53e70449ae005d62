#include "impl/schedule/verify.h"

#include <algorithm>
#include <map>
#include <set>

#include "impl/base/error.h"
#include "impl/schedule/contract.h"
#include "impl/schedule/progress.h"

namespace lamina {
namespace {

struct Fault {
  std::string text;
};

[[noreturn]] void refuse(std::size_t rank, const Op& op, const std::string& reason) {
  throw Fault{fmt::format("rank {}, op {} ({}): {}", rank, op.id, describe(op), reason)};
}

// ---- What each op may look like on its own ----------------------------------------------------------------------

class Structure {
 public:
  Structure(const Schedule& schedule, std::size_t rank)
      : plan_(schedule.plan), programs_(schedule.programs), rank_(rank), program_(schedule.programs[rank]) {
    for (const Op& op : program_.ops) {
      updates_ += op.kind == OpKind::update ? 1U : 0U;
    }
  }

  void check() const {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      require(op, op.id == static_cast<std::int32_t>(i), fmt::format("its place in the program is {}", i));
      check_names(op);
      check_waits(op);
      check_slots(op);
      require(op, op.stream == stream_of(op.kind, moves_gradients(op)),
              fmt::format("does not run on stream {}", name_of(op.stream)));
      require(op, op.elements == elements_of(op, plan_),
              fmt::format("moves {} elements; it should be {}", op.elements, elements_of(op, plan_)));
    }
  }

 private:
  void require(const Op& op, bool condition, const std::string& reason) const {
    if (!condition) {
      refuse(rank_, op, reason);
    }
  }

  void check_names(const Op& op) const {
    require(op, op.kind != OpKind::copy_in && op.kind != OpKind::copy_out, "the plan offloads nothing");
    if (is_control(op.kind)) {
      return;
    }
    const bool is_layer = op.unit.kind == UnitKind::layer;
    require(op, !is_layer || (op.unit.layer >= 0 && op.unit.layer < plan_.model.layers), "there is no such layer");
    const Part part = is_layer ? Part::whole : op.unit.kind == UnitKind::embedding ? Part::embedding : Part::head;
    require(op, op.part == part, fmt::format("part {} does not belong to the unit", name_of(op.part)));
    const bool has_micro_batch = is_compute(op.kind) || op.kind == OpKind::send || op.kind == OpKind::receive;
    if (has_micro_batch) {
      require(op, op.micro_batch >= 0 && op.micro_batch < plan_.micro_batches, "there is no such micro-batch");
    }
    require(op, op.kind != OpKind::loss || op.unit.kind == UnitKind::head, "only the head has a loss");
    require(op, (op.kind != OpKind::forward && op.kind != OpKind::backward) || op.unit.kind != UnitKind::head,
            "the head runs as one loss op");
    if (op.kind == OpKind::send || op.kind == OpKind::receive) {
      require(op, op.peer >= 0 && op.peer < std::ssize(programs_) && op.peer != static_cast<std::int32_t>(rank_),
              fmt::format("there is no peer {}", op.peer));
    }
  }

  void check_waits(const Op& op) const {
    for (const std::int32_t id : op.waits) {
      require(op, id >= 0 && id < std::ssize(program_.ops) && id != op.id, fmt::format("waits for no op {}", id));
    }
  }

  void check_slots(const Op& op) const {
    for (const auto* list : {&op.reads, &op.writes}) {
      for (const std::int32_t slot : *list) {
        require(op, slot >= 0 && slot < std::ssize(program_.slots), fmt::format("there is no slot {}", slot));
      }
    }
    if (op.kind == OpKind::send || op.kind == OpKind::receive) {
      const auto& used = op.kind == OpKind::send ? op.reads : op.writes;
      const auto& unused = op.kind == OpKind::send ? op.writes : op.reads;
      require(op, used.size() == 1 && unused.empty(), "moves exactly one slot");
      const SlotKind kind = slot(used.front()).kind;
      require(op, kind == SlotKind::checkpoint || kind == SlotKind::activation_gradient,
              fmt::format("cannot move a {} slot", name_of(kind)));
      return;
    }
    const SlotUse use = contract_of(op, plan_, updates_);
    check_kinds(op, "reads", op.reads, use.reads);
    check_kinds(op, "writes", op.writes, use.writes);
    if (op.kind == OpKind::backward && op.unit.kind == UnitKind::layer) {
      require(op, op.reads[2] == op.writes[0], "a layer's backward works in place on its activation gradient");
    }
    if (op.kind == OpKind::loss || op.kind == OpKind::loss_total) {
      require(op, op.reads.back() == op.writes[op.kind == OpKind::loss ? 2 : 0], "adds to another loss than it reads");
    }
  }

  void check_kinds(const Op& op, std::string_view verb, const std::vector<std::int32_t>& slots,
                   const std::vector<SlotKind>& kinds) const {
    require(op, slots.size() == kinds.size(),
            fmt::format("{} {} slots instead of {}", verb, slots.size(), kinds.size()));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Slot& used = slot(slots[i]);
      require(
          op, used.kind == kinds[i],
          fmt::format("{} {} slot {} where a {} slot belongs", verb, name_of(used.kind), slots[i], name_of(kinds[i])));
      const bool sized_by_unit = kinds[i] == SlotKind::parameters || kinds[i] == SlotKind::gradient ||
                                 kinds[i] == SlotKind::saved || kinds[i] == SlotKind::parameter_shard ||
                                 kinds[i] == SlotKind::gradient_shard;
      require(op, !sized_by_unit || op.kind == OpKind::norm || used.unit.kind == op.unit.kind,
              fmt::format("{} slot {}, which has the size of the {}", verb, slots[i], name_of(used.unit)));
    }
  }

  bool moves_gradients(const Op& op) const {
    return (op.kind == OpKind::send && slot(op.reads.front()).kind == SlotKind::activation_gradient) ||
           (op.kind == OpKind::receive && slot(op.writes.front()).kind == SlotKind::activation_gradient);
  }

  const Slot& slot(std::int32_t index) const { return program_.slots[static_cast<std::size_t>(index)]; }

  const Plan& plan_;
  const std::vector<Program>& programs_;
  std::size_t rank_;
  const Program& program_;
  std::size_t updates_ = 0;
};

// ---- What slots hold, as symbols --------------------------------------------------------------------------------

struct Content {
  enum class What : std::uint8_t {
    nothing,
    parameters,           // of `unit`
    parameter_shard,      // of `unit`
    checkpoint,           // input of `unit` for `micro_batch`
    saved,                // what the forward of `unit` left for `micro_batch`
    activation_gradient,  // gradient of the input of `unit` for `micro_batch`
    gradient,             // of `unit`, from `contributions`
    target_count,
    loss_sum,
    gradient_norm
  } what = What::nothing;
  Unit unit;
  std::int32_t micro_batch = -1;
  bool whole = false;    // parameters: all shards are current
  bool updated = false;  // parameters, shard: the step's update has been made
  bool reduced = false;  // gradient: summed over the data-parallel ranks; loss_sum: likewise
  std::set<std::int32_t> contributions;
};
using What = Content::What;

std::string to_string(const Content& content) {
  const auto of = [&](std::string_view what) {
    return content.micro_batch < 0
               ? fmt::format("{} of {}", what, name_of(content.unit))
               : fmt::format("{} of {} micro-batch {}", what, name_of(content.unit), content.micro_batch);
  };
  switch (content.what) {
    case What::nothing:
      return "nothing of this step";
    case What::parameters:
      return of(content.updated ? "updated parameters" : content.whole ? "parameters" : "ungathered parameters");
    case What::parameter_shard:
      return of(content.updated ? "the updated shard" : "the shard");
    case What::checkpoint:
      return of("the input");
    case What::saved:
      return of("what is saved");
    case What::activation_gradient:
      return of("the input gradient");
    case What::gradient:
      return fmt::format("{} from {} micro-batches", of(content.reduced ? "the reduced gradient" : "the gradient"),
                         content.contributions.size());
    case What::target_count:
      return "the target count";
    case What::loss_sum:
      return fmt::format("the {}loss of {} micro-batches", content.reduced ? "reduced " : "",
                         content.contributions.size());
    case What::gradient_norm:
      return "the gradient norm";
  }
  return "?";
}

// ---- One run through the schedule: completion, races, contents ---------------------------------------------------
//
// Happens-before has no choices: streams, waits, messages and collectives are matched by order. So one greedy run
// finds a deadlock if there is one in any interleaving; and once every two ops that use a slot, one of them writing,
// are ordered by happens-before, every interleaving computes what this run computes.

class Run {
 public:
  explicit Run(const Schedule& schedule)
      : schedule_(schedule), plan_(schedule.plan), progress_(schedule, 1), ranks_(schedule.programs.size()) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Program& program = schedule.programs[rank];
      RankState& state = ranks_[rank];
      state.contents.resize(program.slots.size());
      state.users.resize(program.slots.size());
      state.clock_at_start.resize(program.ops.size());
      state.clock_at_end.resize(program.ops.size());
      state.position.resize(program.ops.size());
      for (auto& clock : state.stream_clock) {
        clock.assign(ranks_.size() * kStreamKinds, 0);
      }
      for (std::size_t slot = 0; slot < program.slots.size(); ++slot) {
        state.contents[slot] = initial_content(program.slots[slot]);
      }
    }
  }

  void check() {
    const bool completes = run_greedily(
        progress_, [this](std::int32_t rank, StreamKind stream) { start(rank, stream); },
        [this](std::int32_t rank, StreamKind stream) { finish(rank, stream); });
    if (!completes) {
      refuse_stalled();
    }
    check_complete();
  }

 private:
  // clock[rank · kStreamKinds + stream]: how many ops of that stream are known to have ended.
  using Clock = std::vector<std::int32_t>;
  struct Users {
    std::int32_t writer = -1;
    std::vector<std::int32_t> readers;
  };
  struct RankState {
    std::vector<Content> contents;
    std::vector<Users> users;
    std::vector<Clock> clock_at_start, clock_at_end;
    std::vector<std::int32_t> position;    // [op]: how many ops its stream has run before it
    std::map<std::int32_t, Content> sent;  // [send op]: what its slot held when it started
    std::array<Clock, kStreamKinds> stream_clock;
    std::array<std::int32_t, kStreamKinds> ended{};
  };

  Content initial_content(const Slot& slot) const {
    Content content;
    content.unit = slot.unit;
    if (slot.kind == SlotKind::parameters && plan_.zero_stage < 3) {
      content.what = What::parameters;
      content.whole = plan_.zero_stage == 0;
    } else if (slot.kind == SlotKind::parameter_shard) {
      content.what = What::parameter_shard;
    }
    return content;
  }

  static void merge(Clock& into, const Clock& from) {
    for (std::size_t i = 0; i < into.size(); ++i) {
      into[i] = std::max(into[i], from[i]);
    }
  }

  RankState& state(std::int32_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void start(std::int32_t rank, StreamKind stream) {
    RankState& here = state(rank);
    const Op& op = *progress_.head(rank, stream);
    const auto id = static_cast<std::size_t>(op.id);
    Clock clock = here.stream_clock[static_cast<std::size_t>(stream)];
    for (const std::int32_t wait : op.waits) {
      merge(clock, here.clock_at_end[static_cast<std::size_t>(wait)]);
    }
    here.position[id] = here.ended[static_cast<std::size_t>(stream)];
    here.clock_at_start[id] = std::move(clock);
    progress_.start(rank, stream);
    check_races(rank, op);
    if (op.kind == OpKind::send) {
      here.sent[op.id] = content(rank, op.reads[0]);
    }
  }

  bool ended_before(std::int32_t rank, std::int32_t earlier, const Op& op) {
    const RankState& here = state(rank);
    const Op& other = schedule_.programs[static_cast<std::size_t>(rank)].ops[static_cast<std::size_t>(earlier)];
    const std::size_t lane = static_cast<std::size_t>(rank) * kStreamKinds + static_cast<std::size_t>(other.stream);
    return here.clock_at_start[static_cast<std::size_t>(op.id)][lane] >
           here.position[static_cast<std::size_t>(earlier)];
  }

  void check_races(std::int32_t rank, const Op& op) {
    RankState& here = state(rank);
    const auto require_ended = [&](std::int32_t earlier, std::int32_t slot, std::string_view verb) {
      if (earlier >= 0 && earlier != op.id && !ended_before(rank, earlier, op)) {
        const Program& program = schedule_.programs[static_cast<std::size_t>(rank)];
        refuse(static_cast<std::size_t>(rank), op,
               fmt::format("{} {} slot {} without waiting for op {} ({})", verb,
                           name_of(program.slots[static_cast<std::size_t>(slot)].kind), slot, earlier,
                           describe(program.ops[static_cast<std::size_t>(earlier)])));
      }
    };
    for (const std::int32_t slot : op.reads) {
      Users& users = here.users[static_cast<std::size_t>(slot)];
      require_ended(users.writer, slot, "reads");
      users.readers.push_back(op.id);
    }
    for (const std::int32_t slot : op.writes) {
      Users& users = here.users[static_cast<std::size_t>(slot)];
      require_ended(users.writer, slot, "writes");
      for (const std::int32_t reader : users.readers) {
        require_ended(reader, slot, "writes");
      }
      users = {op.id, {}};
    }
  }

  void finish(std::int32_t rank, StreamKind stream) {
    RankState& here = state(rank);
    const Op& op = *progress_.head(rank, stream);
    const auto id = static_cast<std::size_t>(op.id);
    const auto lane = static_cast<std::size_t>(stream);
    Clock clock = here.clock_at_start[id];
    if (is_collective(op.kind) || op.kind == OpKind::receive) {
      for (const auto& [place, other] : progress_.meeting_of(rank, op)) {
        merge(clock, state(place).clock_at_start[static_cast<std::size_t>(other->id)]);
      }
    }
    clock[static_cast<std::size_t>(rank) * kStreamKinds + lane] = here.position[id] + 1;
    here.stream_clock[lane] = clock;
    here.clock_at_end[id] = std::move(clock);
    apply(rank, op);
    ++here.ended[lane];
    progress_.finish(rank, stream);
  }

  [[noreturn]] void refuse_stalled() {
    for (std::int32_t rank = 0; rank < progress_.places(); ++rank) {
      for (const StreamKind stream : kStreams) {
        if (const Op* op = progress_.head(rank, stream)) {
          refuse(static_cast<std::size_t>(rank), *op,
                 progress_.started(rank, stream) ? "its counterpart never comes: the schedule stalls"
                                                 : "what it waits for never ends: the schedule stalls");
        }
      }
    }
    throw Fault{"the schedule stalls"};
  }

  // ---- Effects ----

  Content& content(std::int32_t rank, std::int32_t slot) {
    return state(rank).contents[static_cast<std::size_t>(slot)];
  }

  const Content& require_content(std::int32_t rank, const Op& op, std::int32_t slot, What what, Unit unit,
                                 std::int32_t micro_batch) {
    const Content& held = content(rank, slot);
    if (held.what != what || held.unit != unit || held.micro_batch != micro_batch) {
      Content wanted{.what = what, .unit = unit, .micro_batch = micro_batch, .whole = true};
      refuse(static_cast<std::size_t>(rank), op,
             fmt::format("needs {}, but slot {} holds {}", to_string(wanted), slot, to_string(held)));
    }
    return held;
  }

  void require_parameters(std::int32_t rank, const Op& op) {
    const Content& held = require_content(rank, op, op.reads[0], What::parameters, op.unit, -1);
    if (!held.whole || held.updated) {
      refuse(static_cast<std::size_t>(rank), op, fmt::format("computes on {}", to_string(held)));
    }
  }

  Unit unit_after(Unit unit) const {
    if (unit.kind == UnitKind::embedding) {
      return layer_unit(0);
    }
    return unit.layer + 1 == plan_.model.layers ? head_unit() : layer_unit(unit.layer + 1);
  }

  void once(std::int32_t rank, const Op& op) {
    const std::int32_t who = op.kind == OpKind::norm ? rank : -1;
    if (!seen_.insert({op.kind, op.unit, op.micro_batch, who}).second) {
      refuse(static_cast<std::size_t>(rank), op, "is done twice");
    }
  }

  void apply(std::int32_t rank, const Op& op) {
    switch (op.kind) {
      case OpKind::forward:
        return apply_forward(rank, op);
      case OpKind::loss:
        return apply_loss(rank, op);
      case OpKind::backward:
        return apply_backward(rank, op);
      case OpKind::receive:
        return apply_receive(rank, op);
      case OpKind::gather:
        return apply_gather(rank, op);
      case OpKind::reduce:
      case OpKind::all_reduce:
        return apply_reduction(rank, op);
      case OpKind::update:
        return apply_update(rank, op);
      case OpKind::count:
        once(rank, op);
        content(rank, op.writes[0]) = {.what = What::target_count};
        content(rank, op.writes[1]) = {.what = What::loss_sum};
        return;
      case OpKind::norm:
        return apply_norm(rank, op);
      case OpKind::loss_total:
        return apply_loss_total(rank, op);
      case OpKind::send:  // its receive moves the content
      case OpKind::copy_in:
      case OpKind::copy_out:
        return;
    }
  }

  void apply_forward(std::int32_t rank, const Op& op) {
    once(rank, op);
    require_parameters(rank, op);
    if (op.unit.kind == UnitKind::layer) {
      require_content(rank, op, op.reads[1], What::checkpoint, op.unit, op.micro_batch);
      content(rank, op.writes[1]) = {.what = What::saved, .unit = op.unit, .micro_batch = op.micro_batch};
    }
    content(rank, op.writes[0]) = {
        .what = What::checkpoint, .unit = unit_after(op.unit), .micro_batch = op.micro_batch};
  }

  void apply_loss(std::int32_t rank, const Op& op) {
    once(rank, op);
    require_parameters(rank, op);
    require_content(rank, op, op.reads[1], What::checkpoint, op.unit, op.micro_batch);
    if (content(rank, op.reads[2]).what != What::target_count) {
      refuse(static_cast<std::size_t>(rank), op, "needs the target count, which is not there yet");
    }
    Content& loss = content(rank, op.writes[2]);
    if (loss.what != What::loss_sum || loss.reduced) {
      refuse(static_cast<std::size_t>(rank), op, fmt::format("adds its loss to {}", to_string(loss)));
    }
    loss.contributions.insert(op.micro_batch);
    content(rank, op.writes[3]) = {};
    content(rank, op.writes[0]) = {.what = What::activation_gradient, .unit = op.unit, .micro_batch = op.micro_batch};
    contribute(rank, op, op.writes[1]);
  }

  void apply_backward(std::int32_t rank, const Op& op) {
    once(rank, op);
    if (op.unit.kind == UnitKind::embedding) {
      require_content(rank, op, op.reads[0], What::activation_gradient, layer_unit(0), op.micro_batch);
      contribute(rank, op, op.writes[0]);
      return;
    }
    require_parameters(rank, op);
    require_content(rank, op, op.reads[1], What::checkpoint, op.unit, op.micro_batch);
    require_content(rank, op, op.reads[2], What::activation_gradient, unit_after(op.unit), op.micro_batch);
    if (plan_.recompute == Recompute::full) {
      content(rank, op.writes[2]) = {};
    } else {
      require_content(rank, op, op.reads[3], What::saved, op.unit, op.micro_batch);
    }
    content(rank, op.writes[0]).unit = op.unit;
    contribute(rank, op, op.writes[1]);
  }

  void contribute(std::int32_t rank, const Op& op, std::int32_t slot) {
    Content& gradient = content(rank, slot);
    if (!op.accumulate) {
      gradient = {.what = What::gradient, .unit = op.unit};
    } else if (gradient.what != What::gradient || gradient.unit != op.unit || gradient.reduced) {
      refuse(static_cast<std::size_t>(rank), op,
             fmt::format("adds its gradient to slot {}, which holds {}", slot, to_string(gradient)));
    }
    gradient.contributions.insert(op.micro_batch);
  }

  void apply_receive(std::int32_t rank, const Op& op) {
    for (const auto& [place, other] : progress_.meeting_of(rank, op)) {
      if (other->kind != OpKind::send) {
        continue;
      }
      const bool forward =
          schedule_.programs[static_cast<std::size_t>(rank)].slots[static_cast<std::size_t>(op.writes[0])].kind ==
          SlotKind::checkpoint;
      const Content& sent = state(place).sent.at(other->id);
      const What what = forward ? What::checkpoint : What::activation_gradient;
      if (sent.what != what || sent.unit != op.unit || sent.micro_batch != op.micro_batch) {
        refuse(static_cast<std::size_t>(rank), op,
               fmt::format("gets {} from rank {}'s op {} ({})", to_string(sent), place, other->id, describe(*other)));
      }
      content(rank, op.writes[0]) = sent;
    }
  }

  void apply_gather(std::int32_t rank, const Op& op) {
    const What what = plan_.zero_stage == 3 ? What::parameter_shard : What::parameters;
    const bool updated = require_content(rank, op, op.reads[0], what, op.unit, -1).updated;
    if (plan_.zero_stage < 3 && op.reads[0] != op.writes[0]) {
      refuse(static_cast<std::size_t>(rank), op, "gathers into another buffer than the shard's own");
    }
    content(rank, op.writes[0]) = {.what = What::parameters, .unit = op.unit, .whole = true, .updated = updated};
  }

  void apply_reduction(std::int32_t rank, const Op& op) {
    const Content source = require_content(rank, op, op.reads[0], What::gradient, op.unit, -1);
    if (source.reduced) {
      refuse(static_cast<std::size_t>(rank), op, "reduces a gradient that has been reduced");
    }
    content(rank, op.reads[0]).reduced = true;
    if (op.reads[0] == op.writes[0]) {
      if (op.accumulate) {
        refuse(static_cast<std::size_t>(rank), op, "cannot add to what it reduces in place");
      }
      return;
    }
    Content& shard = content(rank, op.writes[0]);
    if (!op.accumulate) {
      shard = {.what = What::gradient, .unit = op.unit};
    } else if (shard.what != What::gradient || shard.unit != op.unit) {
      refuse(static_cast<std::size_t>(rank), op,
             fmt::format("adds to slot {}, which holds {}", op.writes[0], to_string(shard)));
    }
    shard.reduced = true;
    for (const std::int32_t micro_batch : source.contributions) {
      if (!shard.contributions.insert(micro_batch).second) {
        refuse(static_cast<std::size_t>(rank), op, fmt::format("reduces micro-batch {} twice", micro_batch));
      }
    }
  }

  void require_whole_gradient(std::int32_t rank, const Op& op, const Content& gradient, std::int32_t slot) {
    if (gradient.what != What::gradient || !gradient.reduced ||
        std::ssize(gradient.contributions) != plan_.micro_batches) {
      refuse(static_cast<std::size_t>(rank), op,
             fmt::format("needs a reduced gradient from all {} micro-batches, but slot {} holds {}",
                         plan_.micro_batches, slot, to_string(gradient)));
    }
  }

  void apply_update(std::int32_t rank, const Op& op) {
    once(rank, op);
    const Content& gradient = content(rank, op.reads[0]);
    if (gradient.unit != op.unit) {
      refuse(static_cast<std::size_t>(rank), op, fmt::format("updates with {}", to_string(gradient)));
    }
    require_whole_gradient(rank, op, gradient, op.reads[0]);
    if (plan_.update_after_norm && content(rank, op.reads[1]).what != What::gradient_norm) {
      refuse(static_cast<std::size_t>(rank), op, "needs the gradient norm, which is not there yet");
    }
    const What what = plan_.zero_stage == 3 ? What::parameter_shard : What::parameters;
    require_content(rank, op, op.writes[0], what, op.unit, -1);
    content(rank, op.writes[0]).updated = true;
  }

  void apply_norm(std::int32_t rank, const Op& op) {
    once(rank, op);
    std::set<Unit> units;
    for (const std::int32_t slot : op.reads) {
      const Content& gradient = content(rank, slot);
      require_whole_gradient(rank, op, gradient, slot);
      if (!units.insert(gradient.unit).second) {
        refuse(static_cast<std::size_t>(rank), op, fmt::format("counts {} twice", name_of(gradient.unit)));
      }
    }
    content(rank, op.writes[0]) = {.what = What::gradient_norm};
  }

  void apply_loss_total(std::int32_t rank, const Op& op) {
    once(rank, op);
    Content& loss = content(rank, op.writes[0]);
    if (loss.what != What::loss_sum || loss.reduced || std::ssize(loss.contributions) != plan_.micro_batches) {
      refuse(static_cast<std::size_t>(rank), op, fmt::format("sums {}", to_string(loss)));
    }
    loss.reduced = true;
  }

  // Everything has ended: is anything missing?
  void check_complete() {
    const auto require_done = [&](OpKind kind, Unit unit, std::int32_t micro_batch, std::int32_t who) {
      if (!seen_.contains({kind, unit, micro_batch, who})) {
        const Op missing{.kind = kind, .unit = unit, .micro_batch = micro_batch};
        throw Fault{fmt::format("no rank does this: {}", describe(missing))};
      }
    };
    const std::vector<Unit> units = all_units(plan_.model);
    for (const Unit unit : units) {
      for (std::int32_t micro_batch = 0; micro_batch < plan_.micro_batches; ++micro_batch) {
        if (unit.kind == UnitKind::head) {
          require_done(OpKind::loss, unit, micro_batch, -1);
        } else {
          require_done(OpKind::forward, unit, micro_batch, -1);
          require_done(OpKind::backward, unit, micro_batch, -1);
        }
      }
      require_done(OpKind::update, unit, -1, -1);
    }
    const Unit none{UnitKind::layer, -1};
    require_done(OpKind::count, none, -1, -1);
    require_done(OpKind::loss_total, none, -1, -1);
    for (std::int32_t rank = 0; rank < progress_.places(); ++rank) {
      require_done(OpKind::norm, none, -1, rank);
    }
  }

  const Schedule& schedule_;
  const Plan& plan_;
  Progress progress_;
  std::vector<RankState> ranks_;
  std::set<std::tuple<OpKind, Unit, std::int32_t, std::int32_t>> seen_;  // the last: rank, where each rank does it
};

}  // namespace

std::optional<std::string> find_fault(const Schedule& schedule) {
  try {
    if (std::ssize(schedule.programs) != schedule.plan.parallel.pipeline) {
      throw Fault{
          fmt::format("{} programs for {} pipeline ranks", schedule.programs.size(), schedule.plan.parallel.pipeline)};
    }
    for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
      Structure(schedule, rank).check();
    }
    Run(schedule).check();
  } catch (const Fault& fault) {
    return fault.text;
  }
  return std::nullopt;
}

void verify(const Schedule& schedule) {
  if (const auto fault = find_fault(schedule)) {
    throw Error("the schedule is wrong: " + *fault);
  }
}

}  // namespace lamina
