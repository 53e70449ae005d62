// Memory: the number of slots against the closed forms of each method, and what is allocated against what the process
// really grows by.
#include <gtest/gtest.h>

#include <algorithm>

#include "impl/engine/train.h"
#include "tests/unit/schedule_cases.h"

namespace lamina {
namespace {

std::int64_t count_of(const Program& program, SlotKind kind) {
  return std::count_if(program.slots.begin(), program.slots.end(), [&](const Slot& slot) { return slot.kind == kind; });
}

// Checkpoint slots beyond those that the forms count: inputs and outputs on their way between ranks (one or two each
// way, whatever the number of micro-batches), or the head's input; all
// micro-batches' head inputs where a rank takes all of them through the last layer at once.
struct Checkpoints {
  ScheduleCase plan;
  std::vector<std::int64_t> counted;  // [rank]: by the method's form
  std::vector<std::int64_t> beyond;   // [rank]
};

TEST(MemoryTest, CheckpointSlotsFollowTheMethodsForms) {
  // Eight layers. Depth-first K = 8; GPipe m·K; 1F1B min(m, L - r)·K; layered and modular m·K; hybrid (m/n)·K.
  const std::vector<Checkpoints> cases{
      {{.method = "data_parallel", .layers = 8, .micro_batches = 2}, {8}, {1}},
      {{.method = "data_parallel", .layers = 8, .micro_batches = 6}, {8}, {1}},
      {{.method = "layered_accumulation", .layers = 8, .micro_batches = 2}, {16}, {2}},
      {{.method = "layered_accumulation", .layers = 8, .micro_batches = 6}, {48}, {6}},
      {{.method = "layered_accumulation", .layers = 8, .micro_batches = 6, .groups = 3}, {16}, {2}},
      {{.method = "gpipe", .layers = 8, .micro_batches = 3, .pipeline = 4}, {6, 6, 6, 6}, {2, 2, 2, 1}},
      {{.method = "gpipe", .layers = 8, .micro_batches = 6, .pipeline = 4}, {12, 12, 12, 12}, {2, 2, 2, 1}},
      {{.method = "one_f_one_b", .layers = 8, .micro_batches = 2, .pipeline = 4}, {4, 4, 4, 2}, {2, 2, 2, 2}},
      {{.method = "one_f_one_b", .layers = 8, .micro_batches = 4, .pipeline = 4}, {8, 6, 4, 2}, {2, 3, 3, 2}},
      {{.method = "one_f_one_b", .layers = 8, .micro_batches = 20, .pipeline = 4}, {8, 6, 4, 2}, {2, 3, 3, 2}},
      {{.method = "modular_pipeline", .layers = 8, .micro_batches = 4, .pipeline = 4}, {8, 8, 8, 8}, {2, 2, 2, 4}},
      {{.method = "modular_pipeline", .layers = 8, .micro_batches = 8, .pipeline = 4}, {16, 16, 16, 16}, {2, 2, 2, 8}},
  };
  for (const Checkpoints& c : cases) {
    const Schedule schedule = schedule_of(c.plan);
    ASSERT_EQ(schedule.programs.size(), c.counted.size());
    for (std::size_t rank = 0; rank < c.counted.size(); ++rank) {
      EXPECT_EQ(count_of(schedule.programs[rank], SlotKind::checkpoint), c.counted[rank] + c.beyond[rank])
          << to_string(c.plan) << ", rank " << rank;
    }
  }
}

TEST(MemoryTest, GatheredBuffersAndShardsFollowTheZeroStage) {
  for (const std::int64_t resident : {1, 2, 3, 20}) {
    const Schedule schedule = schedule_of({.method = "layered_accumulation",
                                           .layers = 8,
                                           .micro_batches = 4,
                                           .data = 3,
                                           .zero_stage = 3,
                                           .resident_layers = resident});
    const Program& program = schedule.programs[0];
    // Buffers of layers, and one each of the embedding and the head.
    EXPECT_EQ(count_of(program, SlotKind::parameters), std::min<std::int64_t>(resident, 8) + 2);
    EXPECT_EQ(count_of(program, SlotKind::gradient), 2 + 2);
    EXPECT_EQ(count_of(program, SlotKind::parameter_shard), 10);
    EXPECT_EQ(count_of(program, SlotKind::gradient_shard), 10);
  }
}

// What the process grows by from a small to a large plan is what the ledgers say, within 5 %.
TEST(MemoryTest, ResidentSetGrowsByWhatTheLedgerSays) {
  const auto measure = [](const ScheduleCase& c, const ModelShape& shape) {
    TrainRequest request;
    request.schedule = build_schedule(method_named(c.method), plan_of(c, shape));
    request.optimizer = {.kind = OptimizerConfig::Kind::adamw, .learning_rate = 1e-3};
    request.data = {.kind = DataConfig::Kind::synthetic, .path = "", .seed = 2};
    request.measured_steps = 2;
    const TrainOutcome outcome = train(request, nullptr);
    std::int64_t ledger = 0;
    for (const RankMemory& memory : outcome.rank_memory) {
      ledger += memory.total();
    }
    return std::pair{ledger, outcome.resident_set_growth_bytes.at(0)};
  };
  struct Pair {
    ModelShape shape;
    ScheduleCase small, large;
  };
  const ModelShape wide{.layers = 4, .hidden = 512, .heads = 4, .sequence = 32, .vocabulary = 256};
  const ModelShape narrow{.layers = 4, .hidden = 128, .heads = 4, .sequence = 256, .vocabulary = 256};
  const std::vector<Pair> pairs{
      // more micro-batches: checkpoints and what is saved
      {narrow,
       {.method = "layered_accumulation", .layers = 4, .micro_batches = 1},
       {.method = "layered_accumulation", .layers = 4, .micro_batches = 48}},
      // more layers: weights, gradients, moments
      {wide,
       {.method = "data_parallel", .layers = 2, .micro_batches = 1, .data = 2},
       {.method = "data_parallel", .layers = 8, .micro_batches = 1, .data = 2}},
      {wide,
       {.method = "modular_pipeline", .layers = 4, .micro_batches = 2, .pipeline = 2, .zero_stage = 3},
       {.method = "modular_pipeline", .layers = 12, .micro_batches = 6, .pipeline = 2, .zero_stage = 3}},
  };
  for (const auto& [shape, small, large] : pairs) {
    const auto [small_ledger, small_growth] = measure(small, shape);
    const auto [large_ledger, large_growth] = measure(large, shape);
    const auto wanted = static_cast<double>(large_ledger - small_ledger);
    EXPECT_GT(wanted, 400e6) << to_string(large);
    EXPECT_NEAR(static_cast<double>(large_growth - small_growth), wanted, 0.05 * wanted) << to_string(large);
  }
}

}  // namespace
}  // namespace lamina
