// Every method's schedules are accepted by the verifier and compute what one rank computes, in every interleaving
// tried.
#include <gtest/gtest.h>

#include "impl/schedule/text.h"
#include "impl/schedule/verify.h"
#include "tests/unit/schedule_cases.h"
#include "tests/unit/toy_arithmetic.h"

namespace lamina {
namespace {

void expect_right(const ScheduleCase& c, std::uint64_t seeds) {
  SCOPED_TRACE(to_string(c));
  const Schedule schedule = schedule_of(c);
  const auto fault = find_fault(schedule);
  ASSERT_FALSE(fault.has_value()) << *fault;
  const toy::Outcome reference = toy::reference(schedule.plan);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const toy::Result result = toy::run(schedule, seed);
    ASSERT_FALSE(result.stalled) << result.stalled_at;
    ASSERT_TRUE(toy::same(result.outcome, reference)) << "seed " << seed;
  }
}

TEST(ScheduleTest, OneRankDataParallelAndLayeredAreRight) {
  for (const std::int64_t layers : {1, 2, 3, 5}) {
    for (const std::int64_t micro_batches : {1, 2, 3, 4}) {
      for (const std::int64_t data : {1, 2, 3, 5}) {
        for (const bool update_after_norm : {false, true}) {
          expect_right({.method = "data_parallel",
                        .layers = layers,
                        .micro_batches = micro_batches,
                        .data = data,
                        .update_after_norm = update_after_norm},
                       4);
          for (std::int64_t groups = 1; groups <= micro_batches; ++groups) {
            if (micro_batches % groups == 0) {
              expect_right({.method = "layered_accumulation",
                            .layers = layers,
                            .micro_batches = micro_batches,
                            .data = data,
                            .groups = groups,
                            .update_after_norm = update_after_norm},
                           4);
            }
          }
        }
      }
    }
  }
}

TEST(ScheduleTest, EveryMethodStageAndGroupingIsRight) {
  int tried = 0, refused = 0;
  for (const Method* method : all_methods()) {
    for (std::int64_t pipeline = 1; pipeline <= 4; ++pipeline) {
      for (const std::int64_t layers : {1, 2, 3, 4, 5, 7, 8, 9}) {
        for (std::int64_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
          for (int zero_stage = 0; zero_stage <= 3; ++zero_stage) {
            const std::int64_t variant = layers + micro_batches + zero_stage + pipeline;
            ScheduleCase c{.method = method->name,
                           .layers = layers,
                           .micro_batches = micro_batches,
                           .data = 1 + variant % 3,
                           .pipeline = pipeline,
                           .zero_stage = zero_stage,
                           .recompute = variant % 2 == 0 ? Recompute::none : Recompute::full,
                           .keep_full_gradient = zero_stage >= 2 && variant % 4 == 0,
                           .update_after_norm = variant % 5 < 2,
                           .resident_layers = zero_stage == 3 ? 1 + variant % 4 : 0,
                           .prefetch_layers = zero_stage == 3 ? variant % 3 : -1};
            for (const std::int64_t groups : {0, 2, 3}) {
              for (const std::int64_t chunks : {0, 1, 3}) {
                c.groups = groups;
                c.chunks = chunks;
                try {
                  plan_of(c);
                } catch (const UsageError&) {
                  ++refused;
                  continue;
                }
                ++tried;
                expect_right(c, 2);
                if (HasFatalFailure()) {
                  return;
                }
              }
            }
          }
        }
      }
    }
  }
  RecordProperty("tried", tried);
  EXPECT_GT(tried, 2000);
  EXPECT_GT(refused, 1000);
}

TEST(ScheduleTest, TextReadsBack) {
  for (const char* method : {"data_parallel", "layered_accumulation", "gpipe", "one_f_one_b", "modular_pipeline"}) {
    const bool pipeline = std::string_view(method).find("pipe") != std::string_view::npos;
    const Schedule schedule = schedule_of(
        {.method = method, .layers = 4, .micro_batches = 4, .data = 2, .pipeline = pipeline ? 2 : 1, .zero_stage = 3});
    EXPECT_EQ(schedule_from_text(to_text(schedule)), schedule) << method;
  }
}

TEST(ScheduleTest, TextErrorsNameTheLine) {
  const auto message_of = [](std::string_view text) {
    try {
      schedule_from_text(text);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  EXPECT_EQ(message_of("hello"), "schedule text, line 1: the text does not begin with 'lamina-schedule 1'");
  EXPECT_EQ(message_of("lamina-schedule 1\nop 0 forward 1\n"), "schedule text, line 2: no rank has begun");
  EXPECT_EQ(message_of("lamina-schedule 1\nrank 0\nslot 0 cupboard 1\n"),
            "schedule text, line 3: 'cupboard' is not known here");
}

}  // namespace
}  // namespace lamina
