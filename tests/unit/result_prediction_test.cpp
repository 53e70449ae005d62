// Closed forms of traffic and memory against literal numbers.
#include "impl/harness/prediction.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace lamina {
namespace {

// 5 layers of 12·6² + 13·6 = 510 parameters (170 a rank), embedding (97 + 7)·6 = 624 (208), head (97 + 2)·6 = 594
// (198), on three ranks: in 4 bytes a collective of one layer sends 2·170·4 = 1360 bytes, of the embedding 1664, of the
// head 1584.
Plan plan_of(int zero_stage, std::int64_t micro_batches, std::int64_t groups) {
  Plan plan;
  plan.model = {.layers = 5, .hidden = 6, .heads = 3, .sequence = 7, .vocabulary = 97};
  plan.parallel = {.data = 3, .pipeline = 1, .tensor = 1};
  plan.zero_stage = zero_stage;
  plan.micro_batch_size = 2;
  plan.micro_batches = micro_batches;
  plan.groups = groups;
  return plan;
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
    Plan plan = plan_of(row.zero_stage, row.micro_batches, row.groups);
    plan.resident_layers = row.resident_layers;
    plan.keep_full_gradient = row.keep_full_gradient;
    const auto traffic = predict(plan, precision_of(RealType::fp32), OptimizerConfig::Kind::sgd).traffic;
    ASSERT_TRUE(traffic);
    const std::string where = fmt::format("ZeRO-{}, {} micro-batches in {} groups, {} resident", row.zero_stage,
                                          row.micro_batches, row.groups, row.resident_layers);
    EXPECT_EQ(traffic->layers, (UnitTraffic{row.layer_reductions * 1360, row.layer_gathers * 1360})) << where;
    EXPECT_EQ(traffic->embedding, (UnitTraffic{row.end_reductions * 1664, row.end_gathers * 1664})) << where;
    EXPECT_EQ(traffic->head, (UnitTraffic{row.end_reductions * 1584, row.end_gathers * 1584})) << where;
  }
}

TEST(Prediction, OfTrafficScalesWithTheWidthAndIsNothingOnOneRank) {
  EXPECT_EQ(predict(plan_of(0, 1, 1), precision_of(RealType::fp64), OptimizerConfig::Kind::sgd).traffic->layers.reduce,
            27200);
  Plan alone = plan_of(3, 4, 4);
  alone.parallel.data = 1;
  EXPECT_EQ(predict(alone, precision_of(RealType::fp32), OptimizerConfig::Kind::sgd).traffic->total(),
            (UnitTraffic{0, 0}));
}

// 5·510 + 624 + 594 = 3768 parameters; a checkpoint is 2·7·6 = 84 elements, at 6 boundaries.
TEST(Prediction, OfMemoryIsWhatARankHolds) {
  const auto memory = [](int stage, std::int64_t groups) {
    return *predict(plan_of(stage, 4, groups), precision_of(RealType::fp32), OptimizerConfig::Kind::adamw).memory;
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
  const auto predicted = [](int stage, RealType reduce, OptimizerConfig::Kind optimizer) {
    Precision precision = precision_of(RealType::bf16);
    precision.reduce = reduce;
    return predict(plan_of(stage, 4, 1), precision, optimizer);
  };
  const auto memory = [&](int stage) { return *predicted(stage, RealType::fp32, OptimizerConfig::Kind::adamw).memory; };
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
  EXPECT_EQ(predicted(0, RealType::fp32, OptimizerConfig::Kind::sgd).memory->optimizer, 15072);  // the masters

  // Half of fp32's gathers; reductions as they are asked for.
  const auto layers = [&](int stage, RealType reduce) {
    return predicted(stage, reduce, OptimizerConfig::Kind::sgd).traffic->layers;
  };
  EXPECT_EQ(layers(0, RealType::fp32), (UnitTraffic{13600, 0}));
  EXPECT_EQ(layers(0, RealType::bf16), (UnitTraffic{6800, 0}));
  EXPECT_EQ(layers(3, RealType::fp32), (UnitTraffic{6800, 5440}));
  EXPECT_EQ(layers(3, RealType::bf16), (UnitTraffic{3400, 5440}));
}

TEST(Prediction, SaysWhereItHasNone) {
  Plan plan = plan_of(0, 4, 1);
  plan.parallel.pipeline = 2;
  const Prediction none = predict(plan, precision_of(RealType::fp32), OptimizerConfig::Kind::sgd);
  EXPECT_FALSE(none.traffic);
  EXPECT_FALSE(none.memory);
  EXPECT_FALSE(none.reason.empty());
}

}  // namespace
}  // namespace lamina
