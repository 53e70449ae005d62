// Closed forms of traffic and memory against literal numbers.
#include "impl/harness/prediction.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/unit/schedule_cases.h"

namespace lamina {
namespace {

// 5 layers of 12·6² + 13·6 = 510 parameters (170 a rank), embedding (97 + 7)·6 = 624 (208), head (97 + 2)·6 = 594
// (198), on three ranks: in 4 bytes a collective of one layer sends 2·170·4 = 1360 bytes, of the embedding 1664, of the
// head 1584.
Plan one_stage(int zero_stage, std::int64_t micro_batches, std::int64_t groups) {
  Plan plan;
  plan.method = "layered_accumulation";  // one micro-batch a group: depth-first
  plan.model = {.layers = 5, .hidden = 6, .heads = 3, .sequence = 7, .vocabulary = 97};
  plan.parallel = {.data = 3, .pipeline = 1, .tensor = 1};
  plan.zero_stage = zero_stage;
  plan.micro_batch_size = 2;
  plan.micro_batches = micro_batches;
  plan.groups = groups;
  return plan;
}

Prediction predicted(const Plan& plan, const Precision& precision = precision_of(RealType::fp32),
                     OptimizerConfig::Kind optimizer = OptimizerConfig::Kind::sgd) {
  return predict(method_named(plan.method), plan, precision, optimizer);
}

struct Row {
  int zero_stage;
  std::int64_t micro_batches, groups, resident_layers;
  bool keep_full_gradient;
  std::int64_t layer_gathers, layer_reductions;  // collectives of one layer
  std::int64_t end_gathers, end_reductions;      // of the embedding, and of the head
};

TEST(Prediction, OfTrafficIsThePapersTable) {
  const Row table[] = {
      // ZeRO-0: an all-reduce is two reductions, whatever the order.
      {0, 1, 1, 2, false, 0, 10, 0, 2},
      {0, 8, 8, 2, false, 0, 10, 0, 2},
      {0, 8, 1, 2, false, 0, 10, 0, 2},
      {1, 8, 8, 2, false, 5, 5, 1, 1},
      {1, 8, 1, 2, false, 5, 5, 1, 1},
      // ZeRO-2: a reduction a layer and group.
      {2, 1, 1, 2, false, 5, 5, 1, 1},
      {2, 2, 2, 2, false, 5, 10, 1, 2},
      {2, 8, 8, 2, false, 5, 40, 1, 8},
      {2, 8, 1, 2, false, 5, 5, 1, 1},
      {2, 8, 8, 2, true, 5, 5, 1, 1},
      // ZeRO-3: 2nK less P(2n - 1) gathers.
      {3, 1, 1, 1, false, 9, 5, 1, 1},
      {3, 1, 1, 2, false, 8, 5, 1, 1},
      {3, 4, 4, 1, false, 33, 20, 1, 4},
      {3, 4, 4, 2, false, 26, 20, 1, 4},
      {3, 8, 8, 2, false, 50, 40, 1, 8},
      {3, 8, 2, 2, false, 14, 10, 1, 2},
      {3, 8, 1, 2, false, 8, 5, 1, 1},
      {3, 8, 8, 2, true, 50, 5, 1, 1},
      {3, 8, 8, 5, false, 5, 40, 1, 8},
  };
  for (const Row& row : table) {
    Plan plan = one_stage(row.zero_stage, row.micro_batches, row.groups);
    plan.resident_layers = row.resident_layers;
    plan.keep_full_gradient = row.keep_full_gradient;
    const auto traffic = predicted(plan).traffic;
    ASSERT_EQ(traffic.size(), 1);
    const std::string where = fmt::format("ZeRO-{}, {} micro-batches in {} groups, {} resident", row.zero_stage,
                                          row.micro_batches, row.groups, row.resident_layers);
    EXPECT_EQ(traffic[0].layers, (UnitTraffic{row.layer_reductions * 1360, row.layer_gathers * 1360})) << where;
    EXPECT_EQ(traffic[0].embedding, (UnitTraffic{row.end_reductions * 1664, row.end_gathers * 1664})) << where;
    EXPECT_EQ(traffic[0].head, (UnitTraffic{row.end_reductions * 1584, row.end_gathers * 1584})) << where;
  }
}

TEST(Prediction, OfTrafficScalesWithTheWidthAndIsNothingOnOneRank) {
  EXPECT_EQ(predicted(one_stage(0, 1, 1), precision_of(RealType::fp64)).traffic.at(0).layers.reduce, 27200);
  Plan alone = one_stage(3, 4, 4);
  alone.parallel.data = 1;
  EXPECT_EQ(predicted(alone).traffic.at(0).total(), (UnitTraffic{0, 0}));
}

// 5·510 + 624 + 594 = 3768 parameters; a checkpoint is 2·7·6 = 84 elements, at 6 boundaries.
TEST(Prediction, OfMemoryIsWhatARankHolds) {
  const auto memory = [](int stage, std::int64_t groups) {
    return predicted(one_stage(stage, 4, groups), precision_of(RealType::fp32), OptimizerConfig::Kind::adamw)
        .memory.at(0);
  };
  const MemoryPrediction zero = memory(0, 4);
  EXPECT_EQ(zero.parameters, 15072);
  EXPECT_EQ(zero.gradients, 15072);
  EXPECT_EQ(zero.optimizer, 30144);
  EXPECT_EQ(zero.checkpoints, 2016);  // one micro-batch's
  EXPECT_EQ(zero.gathered, 0);
  EXPECT_EQ(memory(0, 2).checkpoints, 2 * 2016);
  EXPECT_EQ(memory(0, 1).checkpoints, 4 * 2016);
  EXPECT_EQ(memory(1, 1).optimizer, 10048);
  EXPECT_EQ(memory(1, 1).gradients, 15072);
  EXPECT_EQ(memory(2, 1).gradients, 5024);
  EXPECT_EQ(memory(2, 1).gathered, 8952);  // 2·510 + 624 + 594 gradients under reduction
  EXPECT_EQ(memory(3, 1).parameters, 5024);
  EXPECT_EQ(memory(3, 1).gathered, 2 * 8952);  // and as many parameters
}

// 16-bit weights: 2 bytes each, and 4 of gradient, 4 of master and 8 of moments: 18 a parameter without partition,
// of which a third of all 18 with ZeRO-3 on three ranks.
TEST(Prediction, OfSixteenBits) {
  const auto in_bf16 = [](int stage, RealType reduce, OptimizerConfig::Kind optimizer) {
    Precision precision = precision_of(RealType::bf16);
    precision.reduce = reduce;
    return predicted(one_stage(stage, 4, 1), precision, optimizer);
  };
  const auto memory = [&](int stage) {
    return in_bf16(stage, RealType::fp32, OptimizerConfig::Kind::adamw).memory.at(0);
  };
  EXPECT_EQ(memory(0).parameters, 7536);
  EXPECT_EQ(memory(0).gradients, 15072);
  EXPECT_EQ(memory(0).optimizer, 45216);
  EXPECT_EQ(memory(0).state(), 18 * 3768);
  EXPECT_EQ(memory(0).checkpoints, 4 * 1008);
  EXPECT_EQ(memory(1).state(), (2 + 4) * 3768 + 12 * 1256);
  EXPECT_EQ(memory(2).state(), 2 * 3768 + 16 * 1256);
  EXPECT_EQ(memory(2).gathered, 8952);  // gradients under reduction, in 4 bytes
  EXPECT_EQ(memory(3).state(), 18 * 1256);
  EXPECT_EQ(memory(3).gathered, 4476 + 8952);
  EXPECT_EQ(in_bf16(0, RealType::fp32, OptimizerConfig::Kind::sgd).memory.at(0).optimizer, 15072);  // the masters

  // Half of fp32's gathers; reductions as they are asked for.
  const auto layers = [&](int stage, RealType reduce) {
    return in_bf16(stage, reduce, OptimizerConfig::Kind::sgd).traffic.at(0).layers;
  };
  EXPECT_EQ(layers(0, RealType::fp32), (UnitTraffic{13600, 0}));
  EXPECT_EQ(layers(0, RealType::bf16), (UnitTraffic{6800, 0}));
  EXPECT_EQ(layers(3, RealType::fp32), (UnitTraffic{6800, 5440}));
  EXPECT_EQ(layers(3, RealType::bf16), (UnitTraffic{3400, 5440}));
}

// Two stages of 1F1B, 4 micro-batches: the first sends each activation, the second each gradient, 84 elements.
TEST(Prediction, OfAPipelineIsForEachStage) {
  Plan plan = one_stage(0, 4, 1);
  plan.method = "one_f_one_b";
  plan.parallel.pipeline = 2;
  plan.groups = 4;
  const Prediction both = predicted(plan);
  ASSERT_EQ(both.traffic.size(), 2);
  EXPECT_EQ(both.traffic[0].layers, (UnitTraffic{6 * 1360, 0}));  // 3 of 5 layers
  EXPECT_EQ(both.traffic[1].layers, (UnitTraffic{4 * 1360, 0}));
  EXPECT_EQ(both.traffic[0].embedding.reduce, 2 * 1664);
  EXPECT_EQ(both.traffic[0].head.reduce, 0);
  EXPECT_EQ(both.traffic[1].embedding.reduce, 0);
  EXPECT_EQ(both.traffic[1].head.reduce, 2 * 1584);
  EXPECT_EQ(both.traffic[0].pipeline_send, 4 * 84 * 4);
  EXPECT_EQ(both.traffic[1].pipeline_send, 4 * 84 * 4);
  EXPECT_EQ(both.memory.at(0).parameters, 4 * (3 * 510 + 624));
  EXPECT_EQ(both.memory.at(1).parameters, 4 * (2 * 510 + 594));
  EXPECT_EQ(both.memory[0].checkpoints, 4 * 84 * (2 * 3));      // min(m, L - r) K
  EXPECT_EQ(both.memory[1].checkpoints, 4 * 84 * (1 * 2 + 1));  // and the head's input
}

// What the ops of a pipeline rank's program send, and what its slots hold, in elements of 4 bytes.
struct FromSchedule {
  TrafficPrediction traffic;
  MemoryPrediction memory;
};
FromSchedule count(const Program& program, const Plan& plan) {
  FromSchedule counted;
  const std::int64_t data = plan.parallel.data;
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::send) {
      counted.traffic.pipeline_send += 4 * op.elements;
    } else if (is_collective(op.kind) && !is_control(op.kind)) {
      UnitTraffic& unit = op.unit.kind == UnitKind::layer       ? counted.traffic.layers
                          : op.unit.kind == UnitKind::embedding ? counted.traffic.embedding
                                                                : counted.traffic.head;
      const std::int64_t once = 4 * op.elements / data * (data - 1);
      unit.gather += op.kind == OpKind::gather ? once : 0;
      unit.reduce += op.kind == OpKind::reduce ? once : op.kind == OpKind::all_reduce ? 2 * once : 0;
    }
  }
  const bool by_visit = plan.zero_stage >= 2 && !plan.keep_full_gradient;
  for (const Slot& slot : program.slots) {
    const auto unit = [&] { return 4 * padded(unit_parameters(plan.model, slot.unit), data); };
    switch (slot.kind) {
      case SlotKind::parameters:
        (plan.zero_stage == 3 ? counted.memory.gathered : counted.memory.parameters) += unit();
        break;
      case SlotKind::parameter_shard:
        counted.memory.parameters += unit() / data;
        break;
      case SlotKind::gradient:
        (by_visit ? counted.memory.gathered : counted.memory.gradients) += unit();
        break;
      case SlotKind::gradient_shard:
        counted.memory.gradients += unit() / data;
        break;
      case SlotKind::checkpoint:
        counted.memory.checkpoints += 4 * plan.micro_batch_size * plan.model.sequence * plan.model.hidden;
        break;
      default:
        break;
    }
  }
  return counted;
}

void expect_equal(const TrafficPrediction& one, const TrafficPrediction& other) {
  EXPECT_EQ(one.layers, other.layers);
  EXPECT_EQ(one.embedding, other.embedding);
  EXPECT_EQ(one.head, other.head);
  EXPECT_EQ(one.pipeline_send, other.pipeline_send);
}

// Returns how many of the plans have no traffic form.
int compare_with_schedules(std::string_view method, std::int64_t pipeline) {
  int without = 0;
  for (std::int64_t layers = pipeline; layers <= 8; ++layers) {
    for (const std::int64_t micro_batches : {1, 2, 3, 6}) {
      for (const int zero_stage : {0, 1, 2, 3}) {
        for (const bool full : {false, true}) {
          ScheduleCase c{.method = method, .layers = layers, .micro_batches = micro_batches, .data = 3};
          c.pipeline = pipeline;
          c.zero_stage = zero_stage;
          c.keep_full_gradient = full;
          if ((full && zero_stage < 2) || (method == "interleaved_one_f_one_b" && layers < 2 * pipeline)) {
            continue;
          }
          c.resident_layers = zero_stage == 3 ? 1 + micro_batches % 3 : 0;
          SCOPED_TRACE(to_string(c));
          const Schedule schedule = schedule_of(c);
          const Prediction prediction = predicted(schedule.plan);
          EXPECT_EQ(prediction.traffic.empty(), !prediction.reason.empty());
          without += prediction.traffic.empty() ? 1 : 0;
          for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
            SCOPED_TRACE(rank);
            const FromSchedule counted = count(schedule.programs[rank], schedule.plan);
            if (!prediction.traffic.empty()) {
              expect_equal(prediction.traffic.at(rank), counted.traffic);
            }
            const MemoryPrediction& memory = prediction.memory.at(rank);
            EXPECT_EQ(memory.parameters, counted.memory.parameters);
            EXPECT_EQ(memory.gradients, counted.memory.gradients);
            EXPECT_EQ(memory.gathered, counted.memory.gathered);
            const std::int64_t more = counted.memory.checkpoints - memory.checkpoints;
            EXPECT_GE(more, 0);
            // Activations on their way; chunks of unequal length are counted at their mean.
            const bool even = method != "interleaved_one_f_one_b" || layers % (2 * pipeline) == 0;
            EXPECT_LE(more, pipeline == 1 ? 0 : (even ? 3 : 4) * 4 * 2 * 4);
          }
          if (testing::Test::HasFailure()) {
            return without;
          }
        }
      }
    }
  }
  return without;
}

TEST(Prediction, IsWhatTheSchedulesSendAndHold) {
  for (const std::int64_t pipeline : {1, 2, 3, 4}) {
    for (const char* method : {"gpipe", "one_f_one_b", "modular_pipeline"}) {
      EXPECT_EQ(compare_with_schedules(method, pipeline), 0);
    }
  }
  EXPECT_EQ(compare_with_schedules("data_parallel", 1), 0);
  EXPECT_EQ(compare_with_schedules("layered_accumulation", 1), 0);
  EXPECT_GT(compare_with_schedules("interleaved_one_f_one_b", 2), 0);
}

TEST(Prediction, SaysWhereItHasNone) {
  Plan plan = one_stage(3, 4, 1);
  plan.method = "interleaved_one_f_one_b";
  plan.parallel.pipeline = 2;
  plan.chunks = 2;
  const Prediction no_gathers = predicted(plan);
  EXPECT_TRUE(no_gathers.traffic.empty());
  EXPECT_EQ(no_gathers.memory.size(), 2);
  EXPECT_FALSE(no_gathers.reason.empty());

  plan.parallel.tensor = 2;
  const Prediction none = predicted(plan);
  EXPECT_TRUE(none.traffic.empty());
  EXPECT_TRUE(none.memory.empty());
  EXPECT_FALSE(none.reason.empty());
}

}  // namespace
}  // namespace lamina
