// What ranks have to compute with, wherever their processes are, and how what they know comes together.
#include <gtest/gtest.h>

#include "impl/engine/rank_outcome.h"
#include "impl/harness/context.h"

namespace lamina {
namespace {

Placement processes(const std::vector<std::pair<std::string, std::vector<int>>>& places) {
  Placement placement;
  for (const auto& [host, cores] : places) {
    placement.processes.push_back({host, cores, "mpi"});
  }
  return placement;
}

void expect_share(const ComputeShare& share, int threads, std::int64_t cores, std::int64_t on_a_host, bool over) {
  EXPECT_EQ(share.threads_per_rank, threads);
  EXPECT_EQ(share.cores, cores);
  EXPECT_EQ(share.most_on_a_host, on_a_host);
  EXPECT_EQ(share.oversubscribed, over);
}

TEST(ComputeShare, OfThreadsIsTheProcessesCoresSharedOut) {
  const auto cores = static_cast<std::int64_t>(usable_cores().size());
  expect_share(compute_share({}, 1), static_cast<int>(cores), cores, 1, false);
  expect_share(compute_share({}, cores), 1, cores, cores, false);
  expect_share(compute_share({}, cores + 1), 1, cores, cores + 1, true);
}

TEST(ComputeShare, OfProcessesFollowsTheirCores) {
  const std::vector<int> four{0, 1, 2, 3};
  // All on the same cores.
  const Placement together = processes({{"a", four}, {"a", four}, {"a", four}, {"a", four}, {"a", four}});
  expect_share(compute_share(together, 1), 4, 4, 1, false);
  expect_share(compute_share(together, 2), 2, 4, 2, false);
  expect_share(compute_share(together, 3), 1, 4, 3, false);
  expect_share(compute_share(together, 4), 1, 4, 4, false);
  expect_share(compute_share(together, 5), 1, 4, 5, true);
  // Bound to cores of their own.
  expect_share(compute_share(processes({{"a", {0, 1}}, {"a", {2, 3}}}), 2), 2, 4, 2, false);
  // Cores of another host are others.
  expect_share(compute_share(processes({{"a", {0, 1}}, {"b", {0, 1}}}), 2), 2, 4, 1, false);
  // All compute with as many threads as the one that has least.
  expect_share(compute_share(processes({{"a", four}, {"b", {0}}}), 2), 1, 5, 1, false);
  expect_share(compute_share(processes({{"a", {0}}, {"a", {0}}, {"b", four}}), 3), 1, 5, 2, true);
}

TEST(ComputeShare, MoreRanksThanProcessesHaveNoPlace) {
  const Placement two = processes({{"a", {0}}, {"b", {0}}});
  EXPECT_TRUE(two.has(2));
  EXPECT_FALSE(two.has(3));
  EXPECT_TRUE(Placement{}.has(1000));
}

RankOutcome outcome_of(int rank) {
  RankOutcome outcome;
  RankStep step;
  step.time_s = 1 + rank;
  step.exposed_s = 0.25 * rank;
  step.traffic.bytes[1][2] = 10 + rank;
  step.has_loss = rank == 1;
  step.loss_sum = rank == 1 ? 6 : 0;
  step.counted_targets = 3;
  step.gradient_norm = 0.5;
  outcome.steps = {step, step};
  outcome.memory.gathered = 100 + rank;
  outcome.units = {layer_unit(rank)};
  outcome.trace = {{.op = 7, .rank = rank, .step = 1, .start_s = 0.5, .end_s = 0.75}};
  outcome.collectives = CollectiveBackend::library;
  outcome.resident_set_growth_bytes = 1000 + rank;
  outcome.wire = {{"eth0", 5 + rank, 6}, {"lo", 0, 0}};
  return outcome;
}

TEST(RankOutcome, IsTheSameAfterItsJourney) {
  const RankOutcome sent = outcome_of(1);
  const RankOutcome got = unpack(pack(sent));
  ASSERT_EQ(got.steps.size(), 2U);
  EXPECT_EQ(got.steps[1].time_s, 2);
  EXPECT_EQ(got.steps[1].traffic, sent.steps[1].traffic);
  EXPECT_TRUE(got.steps[1].has_loss);
  EXPECT_EQ(got.memory.gathered, 101);
  EXPECT_EQ(got.units, sent.units);
  ASSERT_EQ(got.trace.size(), 1U);
  EXPECT_EQ(got.trace[0].end_s, 0.75);
  EXPECT_EQ(got.collectives, CollectiveBackend::library);
  EXPECT_EQ(got.resident_set_growth_bytes, 1001);
  EXPECT_EQ(got.wire, sent.wire);
  const std::string bytes = pack(sent);
  EXPECT_THROW(unpack(bytes.substr(0, bytes.size() - 1)), Error);
  EXPECT_THROW(unpack(bytes + "x"), Error);
}

TEST(RankOutcome, OfAllRanksBecomesTheRuns) {
  Plan plan;
  plan.model = {.layers = 2, .hidden = 4, .heads = 1, .sequence = 2, .vocabulary = 3};
  const TrainOutcome processes = assemble(plan, {outcome_of(0), outcome_of(1)}, RanksAre::processes);
  ASSERT_EQ(processes.steps.size(), 2U);
  EXPECT_EQ(processes.steps[0].rank_time_s, (std::vector<double>{1, 2}));
  EXPECT_EQ(processes.steps[0].rank_exposed_s, (std::vector<double>{0, 0.25}));
  EXPECT_EQ(processes.steps[0].rank_traffic[1].bytes[1][2], 11);
  EXPECT_EQ(processes.steps[0].loss, 2);
  EXPECT_EQ(processes.steps[0].counted_targets, 3);
  EXPECT_EQ(processes.layers_built, 2);
  EXPECT_EQ(processes.collectives, CollectiveBackend::library);
  EXPECT_EQ(processes.trace.size(), 2U);
  EXPECT_EQ(processes.resident_set_growth_bytes, (std::vector<std::int64_t>{1000, 1001}));
  EXPECT_EQ(processes.rank_wire.at(1).at(0).sent, 6);
  const TrainOutcome threads = assemble(plan, {outcome_of(0), outcome_of(1)}, RanksAre::threads);
  EXPECT_EQ(threads.resident_set_growth_bytes, (std::vector<std::int64_t>{1001}));
  EXPECT_TRUE(threads.rank_wire.empty());
}

}  // namespace
}  // namespace lamina
