// The closed forms of data-parallel time, of gathers and reductions and of checkpoints against verified schedules:
// equal where the forms are exact, on the stated side where they are bounds.
#include "exactness_cases.h"

#include <array>
#include <ostream>

namespace lamina {
namespace {

// ---- Data-parallel time that compute does not hide -----------------------------------------------------------------

struct Partition {
  int zero_stage = 0;
  bool keep_full_gradient = false;
};

class Exposed : public testing::TestWithParam<Partition> {
 protected:
  void apply(Dice& dice, Case& c) const {
    draw_data_times(dice, c);
    c.schedule.zero_stage = GetParam().zero_stage;
    c.schedule.keep_full_gradient = GetParam().keep_full_gradient;
    if (c.schedule.zero_stage == 3) {  // two parameter slots, a gather one layer ahead
      c.schedule.resident_layers = 2;
      c.schedule.prefetch_layers = 1;
    }
  }
  // With the full gradient kept, ZeRO-3 reduces in place and needs no gradient slots; the form gives it two.
  void expect(unsigned seed, const Draw& draw) const {
    if (GetParam().zero_stage == 3 && GetParam().keep_full_gradient) {
      expect_upper_bound(seed, draw, 1);
    } else {
      expect_exact(seed, draw);
    }
  }
};

TEST_P(Exposed, DepthFirst) {
  expect(40, [&](Dice& dice, Case& c) {
    c.schedule.method = "data_parallel";
    c.schedule.layers = dice.whole(1, 9);
    c.schedule.micro_batches = dice.whole(1, 6);
    apply(dice, c);
  });
}

TEST_P(Exposed, Layered) {
  expect(41, [&](Dice& dice, Case& c) {
    c.schedule.method = "layered_accumulation";
    c.schedule.layers = dice.whole(1, 9);
    c.schedule.micro_batches = dice.whole(1, 6);
    apply(dice, c);
  });
}

TEST_P(Exposed, HybridGroups) {
  expect(42, [&](Dice& dice, Case& c) {
    c.schedule.method = "layered_accumulation";
    c.schedule.layers = dice.whole(1, 9);
    draw_groups(dice, c);
    apply(dice, c);
  });
}

TEST_P(Exposed, ModularWithGroupsOfAtLeastThePipeline) {
  expect(43, [&](Dice& dice, Case& c) {
    c.schedule.method = "modular_pipeline";
    c.schedule.pipeline = dice.whole(2, 4);
    c.schedule.groups = GetParam().zero_stage == 2 && !GetParam().keep_full_gradient ? 1 : dice.whole(1, 3);
    c.schedule.layers = c.schedule.pipeline * dice.whole(c.schedule.groups == 1 ? 2 : 3, 4);
    c.schedule.micro_batches = c.schedule.groups * dice.whole(c.schedule.pipeline, c.schedule.pipeline + 3);
    apply(dice, c);
  });
}

TEST_P(Exposed, ModularWithShorterGroupsTakesAtMostTheForm) {
  expect_upper_bound(
      44,
      [&](Dice& dice, Case& c) {
        c.schedule.method = "modular_pipeline";
        c.schedule.pipeline = dice.whole(3, 4);
        c.schedule.layers = c.schedule.pipeline * dice.whole(1, 4);
        c.schedule.groups = dice.whole(1, 3);
        c.schedule.micro_batches = c.schedule.groups * dice.whole(1, c.schedule.pipeline - 1);
        apply(dice, c);
      },
      1);
}

// Between two groups the pipeline's bubble hides more of ZeRO-2's reductions than the form says.
TEST(ExposedInModular, ZeroTwoInSeveralGroupsTakesAtMostTheForm) {
  expect_upper_bound(
      45,
      [](Dice& dice, Case& c) {
        c.schedule.method = "modular_pipeline";
        c.schedule.pipeline = dice.whole(2, 4);
        c.schedule.layers = c.schedule.pipeline * dice.whole(1, 4);
        c.schedule.groups = dice.whole(2, 3);
        c.schedule.micro_batches = c.schedule.groups * dice.whole(c.schedule.pipeline, c.schedule.pipeline + 3);
        draw_data_times(dice, c);
        c.schedule.zero_stage = 2;
      },
      1);
}

INSTANTIATE_TEST_SUITE_P(EveryStage, Exposed,
                         testing::Values(Partition{0, false}, Partition{1, false}, Partition{2, false},
                                         Partition{2, true}, Partition{3, false}, Partition{3, true}),
                         [](const testing::TestParamInfo<Partition>& test) {
                           return fmt::format("Zero{}{}", test.param.zero_stage,
                                              test.param.keep_full_gradient ? "KeepingTheFullGradient" : "");
                         });

void draw_ordinary(Dice& dice, Case& c, const char* method, int zero_stage) {
  c.schedule.method = method;
  draw_layers(dice, c, true);
  c.schedule.micro_batches = dice.whole(1, 8);
  draw_data_times(dice, c);
  c.schedule.zero_stage = zero_stage;
}

class ExposedInOrdinaryPipelines : public testing::TestWithParam<const char*> {};

TEST_P(ExposedInOrdinaryPipelines, WithoutPartition) {
  expect_exact(60, [](Dice& dice, Case& c) { draw_ordinary(dice, c, GetParam(), 0); });
}
TEST_P(ExposedInOrdinaryPipelines, ZeroOne) {
  expect_exact(61, [](Dice& dice, Case& c) { draw_ordinary(dice, c, GetParam(), 1); });
}
TEST_P(ExposedInOrdinaryPipelines, ZeroTwoKeepingTheFullGradient) {
  expect_exact(62, [](Dice& dice, Case& c) {
    draw_ordinary(dice, c, GetParam(), 2);
    c.schedule.keep_full_gradient = true;
  });
}
TEST_P(ExposedInOrdinaryPipelines, ZeroThreeTakesAtMostTheForm) {
  expect_upper_bound(
      63, [](Dice& dice, Case& c) { draw_ordinary(dice, c, GetParam(), 3); }, 0.9);
}
TEST_P(ExposedInOrdinaryPipelines, ZeroThreeOverAFastLinkTakesAtMostTheForm) {
  expect_upper_bound(
      64,
      [](Dice& dice, Case& c) {
        draw_ordinary(dice, c, GetParam(), 3);
        c.times.gather_s = dice.real(0, 1) * c.times.forward_s;
        c.times.reduce_s = dice.real(0, 1) * (c.times.backward_s - c.times.gather_s);
      },
      1 - kClose);
}

INSTANTIATE_TEST_SUITE_P(Both, ExposedInOrdinaryPipelines, testing::Values("gpipe", "one_f_one_b"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ExposedInInterleaved, WithoutPartition) {
  expect_exact(65, [](Dice& dice, Case& c) {
    draw_chunks(dice, c);
    c.schedule.micro_batches = c.schedule.pipeline * dice.whole(1, 3);
    draw_data_times(dice, c);
  });
}

// ---- Gathers and reductions a step ---------------------------------------------------------------------------------

struct Counted {
  std::int64_t gathers = 0, reductions = 0;  // of layers; an all-reduce is two reductions
  bool operator==(const Counted&) const = default;
};

Counted count(const Program& program) {
  Counted counted;
  for (const Op& op : program.ops) {
    if (op.unit.kind != UnitKind::layer || op.unit.layer < 0) {
      continue;
    }
    counted.gathers += op.kind == OpKind::gather ? 1 : 0;
    counted.reductions += op.kind == OpKind::reduce ? 1 : op.kind == OpKind::all_reduce ? 2 : 0;
  }
  return counted;
}

Counted table(const ScheduleCase& c, std::int64_t rank) {
  const analysis::DataTraffic traffic = analysis::data_traffic(step_plan_of(plan_of(c)), c.layers / c.pipeline,
                                                               std::max<std::int64_t>(c.resident_layers, 0), rank);
  return {std::llround(traffic.gathers), std::llround(traffic.reductions)};
}

// Four layers a rank, m micro-batches, two ZeRO-3 buffers: gathers and reductions written out for m = 1, 2, 4, 8.
TEST(GathersAndReductions, OneStageInLiteralNumbers) {
  struct Row {
    const char* method;
    int zero_stage;
    bool keep_full_gradient;
    std::array<Counted, 4> counted;
  };
  const std::vector<Row> rows{
      {"data_parallel", 0, false, {{{0, 8}, {0, 8}, {0, 8}, {0, 8}}}},
      {"data_parallel", 1, false, {{{4, 4}, {4, 4}, {4, 4}, {4, 4}}}},
      {"data_parallel", 2, false, {{{4, 4}, {4, 8}, {4, 16}, {4, 32}}}},
      {"data_parallel", 2, true, {{{4, 4}, {4, 4}, {4, 4}, {4, 4}}}},
      {"data_parallel", 3, false, {{{6, 4}, {10, 8}, {18, 16}, {34, 32}}}},
      {"data_parallel", 3, true, {{{6, 4}, {10, 4}, {18, 4}, {34, 4}}}},
      {"layered_accumulation", 0, false, {{{0, 8}, {0, 8}, {0, 8}, {0, 8}}}},
      {"layered_accumulation", 1, false, {{{4, 4}, {4, 4}, {4, 4}, {4, 4}}}},
      {"layered_accumulation", 2, false, {{{4, 4}, {4, 4}, {4, 4}, {4, 4}}}},
      {"layered_accumulation", 3, false, {{{6, 4}, {6, 4}, {6, 4}, {6, 4}}}},
  };
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < 4; ++i) {
      ScheduleCase c{.method = row.method, .layers = 4, .micro_batches = std::int64_t{1} << i, .data = 2};
      c.zero_stage = row.zero_stage;
      c.keep_full_gradient = row.keep_full_gradient;
      c.resident_layers = row.zero_stage == 3 ? 2 : 0;
      SCOPED_TRACE(to_string(c));
      const Counted counted = count(verified(c).programs.front());
      EXPECT_EQ(counted.gathers, row.counted[i].gathers);
      EXPECT_EQ(counted.reductions, row.counted[i].reductions);
      EXPECT_EQ(counted, table(c, 0));
    }
  }
}

// Two pipeline ranks, four layers each, two buffers: ranks 0 and 1 for m = 1, 2, 4, 8.
TEST(GathersAndReductions, PipelinesOfZeroThreeInLiteralNumbers) {
  struct Row {
    const char* method;
    std::array<std::array<Counted, 2>, 4> counted;
  };
  const std::vector<Row> rows{
      {"gpipe", {{{{{6, 4}, {6, 4}}}, {{{14, 8}, {14, 8}}}, {{{30, 16}, {30, 16}}}, {{{62, 32}, {62, 32}}}}}},
      {"one_f_one_b", {{{{{6, 4}, {6, 4}}}, {{{14, 8}, {10, 8}}}, {{{22, 16}, {18, 16}}}, {{{38, 32}, {34, 32}}}}}},
      {"modular_pipeline", {{{{{6, 4}, {6, 4}}}, {{{6, 4}, {6, 4}}}, {{{6, 4}, {6, 4}}}, {{{6, 4}, {6, 4}}}}}},
  };
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < 4; ++i) {
      const ScheduleCase c{.method = row.method,
                           .layers = 8,
                           .micro_batches = std::int64_t{1} << i,
                           .data = 2,
                           .pipeline = 2,
                           .zero_stage = 3,
                           .resident_layers = 2};
      SCOPED_TRACE(to_string(c));
      const Schedule schedule = verified(c);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const Counted counted = count(schedule.programs[rank]);
        EXPECT_EQ(counted.gathers, row.counted[i][rank].gathers) << "rank " << rank;
        EXPECT_EQ(counted.reductions, row.counted[i][rank].reductions) << "rank " << rank;
        EXPECT_EQ(counted, table(c, static_cast<std::int64_t>(rank))) << "rank " << rank;
      }
    }
  }
}

TEST(GathersAndReductions, TheTableAtRandom) {
  for_each_case(
      80,
      [](Dice& dice, Case& c) {
        const std::vector<std::string_view> methods{"data_parallel", "layered_accumulation", "gpipe", "one_f_one_b",
                                                    "modular_pipeline"};
        const auto method = static_cast<std::size_t>(dice.whole(0, 4));
        c.schedule.method = methods[method];
        c.schedule.data = 2;
        c.schedule.pipeline = method < 2 ? 1 : dice.whole(2, 4);
        c.schedule.layers = c.schedule.pipeline * dice.whole(1, 5);
        if (method == 1 || method == 4) {
          draw_groups(dice, c);
        } else {
          c.schedule.micro_batches = dice.whole(1, 8);
        }
        c.schedule.zero_stage = static_cast<int>(dice.whole(0, 3));
        c.schedule.keep_full_gradient = c.schedule.zero_stage >= 2 && dice.whole(0, 1) == 1;
        c.schedule.resident_layers =
            c.schedule.zero_stage < 3 ? 0 : dice.whole(1, c.schedule.layers / c.schedule.pipeline + 1);
      },
      [](const Case& c) {
        const Schedule schedule = verified(c.schedule);
        for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
          const Counted counted = count(schedule.programs[rank]);
          const Counted expected = table(c.schedule, static_cast<std::int64_t>(rank));
          EXPECT_EQ(counted.gathers, expected.gathers) << "rank " << rank;
          EXPECT_EQ(counted.reductions, expected.reductions) << "rank " << rank;
        }
      });
}

// ---- Checkpoints ---------------------------------------------------------------------------------------------------

std::int64_t slots_of(const Program& program, SlotKind kind) {
  return std::count_if(program.slots.begin(), program.slots.end(), [&](const Slot& slot) { return slot.kind == kind; });
}

// Checkpoint slots less what paper's formula says of a rank: inputs of its layers that wait for their backward pass.
std::int64_t more_checkpoints(const Schedule& schedule, std::size_t rank) {
  const StepPlan plan = step_plan_of(schedule.plan);
  const analysis::Stages stages = analysis::stages_of(schedule.plan.model.layers, plan.pipeline);
  return slots_of(schedule.programs[rank], SlotKind::checkpoint) -
         std::llround(analysis::layers_kept(plan, stages, static_cast<std::int64_t>(rank)));
}

// Least and most over a thousand cases. The last rank keeps the inputs of the head too: as many as it takes through its
// last layer before it turns to the head.
struct Extra {
  std::int64_t least = 1'000'000, most = -1'000'000;
  bool operator==(const Extra&) const = default;
  void add(std::int64_t value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};
struct ExtraCheckpoints {
  Extra last_rank, other_ranks;
};
std::ostream& operator<<(std::ostream& out, const Extra& extra) { return out << extra.least << " to " << extra.most; }

ExtraCheckpoints extra_checkpoints(unsigned seed, const Draw& draw,
                                   const std::function<std::int64_t(const Plan&)>& inputs_of_head) {
  ExtraCheckpoints extra;
  for_each_case(seed, draw, [&](const Case& c) {
    const Schedule schedule = verified(c.schedule);
    const std::size_t last = schedule.programs.size() - 1;
    for (std::size_t rank = 0; rank < last; ++rank) {
      extra.other_ranks.add(more_checkpoints(schedule, rank));
    }
    extra.last_rank.add(more_checkpoints(schedule, last) - inputs_of_head(schedule.plan));
  });
  return extra;
}

TEST(Checkpoints, OneStageKeepsTheFormAndTheHeadsInputs) {
  for_each_case(
      100,
      [](Dice& dice, Case& c) {
        c.schedule.method = "layered_accumulation";
        c.schedule.layers = dice.whole(1, 9);
        draw_groups(dice, c);
      },
      [](const Case& c) {
        const Schedule schedule = verified(c.schedule);
        EXPECT_EQ(more_checkpoints(schedule, 0), c.schedule.micro_batches / c.schedule.groups);
      });
}

TEST(Checkpoints, GPipe) {
  const auto extra = extra_checkpoints(
      101,
      [](Dice& dice, Case& c) {
        c.schedule.method = "gpipe";
        draw_layers(dice, c, true);
        c.schedule.micro_batches = dice.whole(1, 10);
      },
      [](const Plan& plan) { return plan.model.layers == plan.parallel.pipeline ? plan.micro_batches : 1; });
  EXPECT_EQ(extra.other_ranks, (Extra{1, 2}));
  EXPECT_EQ(extra.last_rank, (Extra{0, 0}));
}

TEST(Checkpoints, OneForwardOneBackward) {
  const auto extra = extra_checkpoints(
      102,
      [](Dice& dice, Case& c) {
        c.schedule.method = "one_f_one_b";
        draw_layers(dice, c, true);
        c.schedule.micro_batches = dice.whole(1, 10);
      },
      [](const Plan&) { return 1; });
  EXPECT_EQ(extra.other_ranks, (Extra{1, 3}));
  EXPECT_EQ(extra.last_rank, (Extra{0, 1}));
}

TEST(Checkpoints, Interleaved) {
  const auto extra = extra_checkpoints(
      103,
      [](Dice& dice, Case& c) {
        draw_chunks(dice, c);
        c.schedule.micro_batches = c.schedule.pipeline * dice.whole(1, 4);
      },
      [](const Plan&) { return 1; });
  EXPECT_EQ(extra.other_ranks, (Extra{2, 3}));
  EXPECT_EQ(extra.last_rank, (Extra{2, 2}));
}

TEST(Checkpoints, Modular) {
  const auto extra = extra_checkpoints(
      104,
      [](Dice& dice, Case& c) {
        c.schedule.method = "modular_pipeline";
        draw_layers(dice, c, true);
        draw_groups(dice, c);
      },
      [](const Plan& plan) { return plan.micro_batches / plan.groups; });
  EXPECT_EQ(extra.other_ranks, (Extra{1, 2}));
  EXPECT_EQ(extra.last_rank, (Extra{0, 0}));
}

// 1F1B's memory does not grow with the micro-batches once there are as many as ranks; GPipe's does.
TEST(Checkpoints, OneForwardOneBackwardIsFlatInMicroBatches) {
  std::vector<std::int64_t> one_f_one_b, gpipe;
  for (const std::int64_t m : {4, 8, 16, 32}) {
    one_f_one_b.push_back(
        slots_of(verified({.method = "one_f_one_b", .layers = 8, .micro_batches = m, .pipeline = 4}).programs.front(),
                 SlotKind::checkpoint));
    gpipe.push_back(
        slots_of(verified({.method = "gpipe", .layers = 8, .micro_batches = m, .pipeline = 4}).programs.front(),
                 SlotKind::checkpoint));
  }
  EXPECT_EQ(one_f_one_b.at(1), one_f_one_b.at(3));
  EXPECT_LE(one_f_one_b.at(1) - one_f_one_b.at(0), 1);
  EXPECT_EQ(gpipe.at(3) - gpipe.at(2), 16 * 2);
  EXPECT_EQ(gpipe.at(2) - gpipe.at(1), 8 * 2);
}

}  // namespace
}  // namespace lamina
