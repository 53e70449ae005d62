// The verifier against the interpreter: schedules mutated at random. What goes wrong in any of 100 seeded
// interleavings must be refused; what is refused although none goes wrong is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "impl/schedule/verify.h"
#include "tests/unit/schedule_cases.h"
#include "tests/unit/toy_arithmetic.h"

namespace lamina {
namespace {

constexpr std::uint64_t kInterleavings = 100;

using Random = std::mt19937_64;

std::size_t pick(Random& random, std::size_t count) { return random() % count; }

// After ops were moved, removed or added: ids follow the new places, waits follow the ops that they named.
void renumber(Program& program) {
  std::map<std::int32_t, std::int32_t> place;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    place.emplace(program.ops[i].id, static_cast<std::int32_t>(i));  // of a duplicate, the first
  }
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    Op& op = program.ops[i];
    op.id = static_cast<std::int32_t>(i);
    std::erase_if(op.waits, [&](std::int32_t id) { return !place.contains(id); });
    for (std::int32_t& wait : op.waits) {
      wait = place.at(wait);
    }
    std::erase(op.waits, op.id);
  }
}

std::int32_t other_slot(const Program& program, std::int32_t slot, Random& random) {
  std::vector<std::int32_t> same_kind;
  for (std::int32_t i = 0; i < std::ssize(program.slots); ++i) {
    if (i != slot &&
        program.slots[static_cast<std::size_t>(i)].kind == program.slots[static_cast<std::size_t>(slot)].kind) {
      same_kind.push_back(i);
    }
  }
  return same_kind.empty() ? slot : same_kind[pick(random, same_kind.size())];
}

// One field of an op changed. False when this op has nothing of the kind drawn.
bool retarget(const Plan& plan, Program& program, Op& op, Random& random) {
  switch (pick(random, 6)) {
    case 0:
      if (op.unit.kind != UnitKind::layer || op.unit.layer < 0) {
        return false;
      }
      op.unit.layer = static_cast<std::int32_t>(pick(random, static_cast<std::size_t>(plan.model.layers)));
      return true;
    case 1:
      if (op.micro_batch < 0) {
        return false;
      }
      op.micro_batch = static_cast<std::int32_t>(pick(random, static_cast<std::size_t>(plan.micro_batches)));
      return true;
    case 2:
      if (op.reads.empty()) {
        return false;
      } else {
        std::int32_t& slot = op.reads[pick(random, op.reads.size())];
        slot = other_slot(program, slot, random);
      }
      return true;
    case 3:
      if (op.writes.empty()) {
        return false;
      } else {
        std::int32_t& slot = op.writes[pick(random, op.writes.size())];
        slot = other_slot(program, slot, random);
      }
      return true;
    case 4:
      if (op.kind != OpKind::loss && op.kind != OpKind::backward && op.kind != OpKind::reduce) {
        return false;
      }
      op.accumulate = !op.accumulate;
      return true;
    default:
      if (op.peer < 0 || plan.parallel.pipeline < 3) {
        return false;
      }
      op.peer = static_cast<std::int32_t>(pick(random, static_cast<std::size_t>(plan.parallel.pipeline)));
      return true;
  }
}

std::optional<Schedule> mutate(const Schedule& original, Random& random) {
  Schedule schedule = original;
  Program& program = schedule.programs[pick(random, schedule.programs.size())];
  const std::size_t at = pick(random, program.ops.size());
  const std::size_t other = pick(random, program.ops.size());
  switch (pick(random, 5)) {
    case 0:
      program.ops.erase(program.ops.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      std::swap(program.ops[at], program.ops[other]);
      break;
    case 2: {
      const Op copy = program.ops[at];
      program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(std::max(at, other)) + 1, copy);
      break;
    }
    case 3:
      if (!retarget(schedule.plan, program, program.ops[at], random)) {
        return std::nullopt;
      }
      break;
    default:
      if (program.ops[at].waits.empty()) {
        return std::nullopt;
      }
      program.ops[at].waits.erase(program.ops[at].waits.begin() +
                                  static_cast<std::ptrdiff_t>(pick(random, program.ops[at].waits.size())));
  }
  renumber(program);
  if (schedule == original) {
    return std::nullopt;
  }
  return schedule;
}

struct Tally {
  int mutants = 0, wrong = 0, accepted_right = 0, refused_wrong = 0, refused_right = 0, refused_as_twice = 0;
};

void judge(const Schedule& mutant, const toy::Outcome& reference, Tally& tally) {
  ++tally.mutants;
  const bool wrong = toy::goes_wrong(mutant, reference, kInterleavings);
  const auto fault = find_fault(mutant);
  tally.wrong += wrong ? 1 : 0;
  if (wrong) {
    ASSERT_TRUE(fault.has_value()) << "accepted, but goes wrong";
    ++tally.refused_wrong;
  } else if (!fault) {
    ++tally.accepted_right;
  } else if (fault->find("is done twice") != std::string::npos) {
    ++tally.refused_as_twice;  // the same numbers, but work done twice is refused by the rule
  } else {
    ++tally.refused_right;
  }
}

TEST(MutationTest, WhatGoesWrongIsRefusedAndFalseRefusalsAreFew) {
  const std::vector<ScheduleCase> cases{
      {.method = "data_parallel", .layers = 2, .micro_batches = 2, .data = 2},
      {.method = "data_parallel",
       .layers = 3,
       .micro_batches = 2,
       .data = 2,
       .zero_stage = 2,
       .update_after_norm = true},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 3, .data = 2, .update_after_norm = true},
      {.method = "layered_accumulation",
       .layers = 4,
       .micro_batches = 4,
       .data = 1,
       .groups = 2,
       .zero_stage = 3,
       .recompute = Recompute::full},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 2, .data = 2, .zero_stage = 1},
      {.method = "gpipe", .layers = 4, .micro_batches = 3, .data = 1, .pipeline = 2},
      {.method = "one_f_one_b", .layers = 3, .micro_batches = 4, .data = 2, .pipeline = 3, .zero_stage = 3},
      {.method = "interleaved_one_f_one_b",
       .layers = 4,
       .micro_batches = 4,
       .data = 1,
       .pipeline = 2,
       .update_after_norm = true},
      {.method = "modular_pipeline", .layers = 5, .micro_batches = 3, .data = 2, .pipeline = 2, .zero_stage = 3},
  };
  Tally tally;
  for (const ScheduleCase& c : cases) {
    SCOPED_TRACE(to_string(c));
    const Schedule schedule = schedule_of(c);
    const toy::Outcome reference = toy::reference(schedule.plan);
    Random random(17);
    for (int i = 0; i < 160; ++i) {
      if (const auto mutant = mutate(schedule, random)) {
        judge(*mutant, reference, tally);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
  std::printf(
      "%d mutants: %d go wrong, all refused; %d right and accepted; %d right but done twice; %d refused "
      "without need\n",
      tally.mutants, tally.wrong, tally.accepted_right, tally.refused_as_twice, tally.refused_right);
  EXPECT_GT(tally.mutants, 800);
  EXPECT_GT(tally.wrong, 400);
  EXPECT_GT(tally.accepted_right, 25);
  EXPECT_LT(tally.refused_right, tally.mutants / 20);
}

// The oracle itself: a schedule that trains on other numbers must look wrong to it.
TEST(MutationTest, TheOracleTellsOtherDataApart) {
  Schedule schedule = schedule_of({.method = "layered_accumulation", .layers = 2, .micro_batches = 3, .data = 1});
  const toy::Outcome reference = toy::reference(schedule.plan);
  EXPECT_FALSE(toy::goes_wrong(schedule, reference, 4));
  for (Op& op : schedule.programs[0].ops) {
    if (op.kind == OpKind::loss) {
      op.micro_batch = (op.micro_batch + 1) % 3;  // the labels of another micro-batch
    }
  }
  EXPECT_TRUE(toy::goes_wrong(schedule, reference, 1));
}

}  // namespace
}  // namespace lamina
