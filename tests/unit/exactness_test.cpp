// The closed forms of compute and of transfers against verified schedules: equal where the forms are exact, on the
// stated side where they are bounds.
#include "exactness_cases.h"

namespace lamina {
namespace {

// ---- Compute of a step ---------------------------------------------------------------------------------------------

TEST(Compute, DepthFirst) {
  expect_exact(1, [](Dice& dice, Case& c) {
    c.schedule.method = "data_parallel";
    c.schedule.layers = dice.whole(1, 9);
    c.schedule.micro_batches = dice.whole(1, 8);
  });
}

TEST(Compute, LayeredInAnyGroups) {
  expect_exact(2, [](Dice& dice, Case& c) {
    c.schedule.method = "layered_accumulation";
    c.schedule.layers = dice.whole(1, 9);
    draw_groups(dice, c);
  });
}

TEST(Compute, GPipeWithAnyNumberOfLayers) {
  expect_exact(3, [](Dice& dice, Case& c) {
    c.schedule.method = "gpipe";
    draw_layers(dice, c, false);
    c.schedule.micro_batches = dice.whole(1, 10);
  });
}

TEST(Compute, OneForwardOneBackward) {
  expect_exact(4, [](Dice& dice, Case& c) {
    c.schedule.method = "one_f_one_b";
    draw_layers(dice, c, true);
    c.schedule.micro_batches = dice.whole(1, 10);
  });
}

TEST(Compute, OneForwardOneBackwardWithLayersThatDoNotDivideTakesAtMostTheForm) {
  expect_upper_bound(
      5,
      [](Dice& dice, Case& c) {
        c.schedule.method = "one_f_one_b";
        draw_layers(dice, c, false);
        c.schedule.micro_batches = dice.whole(1, 10);
      },
      1);
}

TEST(Compute, InterleavedInGroupsOfAtLeastThePipeline) {
  expect_exact(6, [](Dice& dice, Case& c) {
    draw_chunks(dice, c);
    c.schedule.micro_batches = dice.whole(c.schedule.pipeline, 4 * c.schedule.pipeline - 1);
  });
}

TEST(Compute, InterleavedWithFewerMicroBatchesThanRanks) {
  expect_exact(7, [](Dice& dice, Case& c) {
    draw_chunks(dice, c);
    c.schedule.micro_batches = dice.whole(1, c.schedule.pipeline - 1);
  });
}

TEST(Compute, ModularWithAnyNumberOfLayersMicroBatchesAndGroups) {
  expect_exact(8, [](Dice& dice, Case& c) {
    c.schedule.method = "modular_pipeline";
    draw_layers(dice, c, false);
    c.schedule.pipeline = dice.whole(1, c.schedule.pipeline);
    draw_groups(dice, c);
  });
}

TEST(Compute, EachRankComputesItsLayersOnce) {
  for_each_case(
      9,
      [](Dice& dice, Case& c) {
        const std::vector<std::string_view> methods{"gpipe", "one_f_one_b", "modular_pipeline"};
        c.schedule.method = methods[static_cast<std::size_t>(dice.whole(0, 2))];
        draw_layers(dice, c, false);
        c.schedule.micro_batches = dice.whole(1, 8);
      },
      [](const Case& c) {
        const Schedule schedule = verified(c.schedule);
        const Simulation simulation = simulate(schedule, layer_costs(c.times));
        double busy = 0;
        for (const double rank : simulation.compute_busy_s) {
          busy += rank;
        }
        const double work = static_cast<double>(c.schedule.micro_batches * c.schedule.layers) * c.times.both_s();
        EXPECT_NEAR(busy / work, 1, kClose);
      });
}

// ---- Transfers between pipeline ranks ------------------------------------------------------------------------------

TEST(Transfers, GPipeWithAnyTransferAndAnyNumberOfLayers) {
  expect_exact(20, [](Dice& dice, Case& c) {
    c.schedule.method = "gpipe";
    draw_layers(dice, c, dice.whole(0, 1) == 0);
    c.schedule.micro_batches = dice.whole(1, 10);
    const bool divides = c.schedule.layers % c.schedule.pipeline == 0;
    c.times.boundary_s = dice.real(0, divides ? 6 : c.times.forward_s);
  });
}

// Returns the time of a stage's forward pass.
double draw_one_f_one_b(Dice& dice, Case& c) {
  c.schedule.method = "one_f_one_b";
  draw_layers(dice, c, true);
  c.schedule.micro_batches = dice.whole(1, 10);
  return static_cast<double>(c.schedule.layers / c.schedule.pipeline) * c.times.forward_s;
}

TEST(Transfers, OneForwardOneBackwardUpToAStage) {
  expect_exact(21, [](Dice& dice, Case& c) {
    const double stage_s = draw_one_f_one_b(dice, c);
    c.times.boundary_s = dice.real(0, stage_s);
  });
}

TEST(Transfers, OneForwardOneBackwardBeyondAStageTakesAtLeastTheForm) {
  for_each_case(
      27,
      [](Dice& dice, Case& c) {
        const double stage_s = draw_one_f_one_b(dice, c);
        c.times.boundary_s = stage_s * dice.real(1, 4);
      },
      [](const Case& c) {
        const Schedule schedule = verified(c.schedule);
        EXPECT_GE(simulated(schedule, c.times) / form_of(schedule, c.times), 1 - kClose);
      });
}

TEST(Transfers, ModularWithAnyTransferWhenLayersDivide) {
  expect_exact(22, [](Dice& dice, Case& c) {
    c.schedule.method = "modular_pipeline";
    draw_layers(dice, c, true);
    draw_groups(dice, c);
    c.times.boundary_s = dice.real(0, 6);
  });
}

TEST(Transfers, ModularUpToALayerWhenLayersDoNotDivide) {
  expect_exact(23, [](Dice& dice, Case& c) {
    c.schedule.method = "modular_pipeline";
    draw_layers(dice, c, false);
    draw_groups(dice, c);
    c.times.boundary_s = dice.real(0, c.times.forward_s);
  });
}

TEST(Transfers, ModularBeyondThatTakesAtMostTheForm) {
  expect_upper_bound(
      24,
      [](Dice& dice, Case& c) {
        c.schedule.method = "modular_pipeline";
        draw_layers(dice, c, false);
        draw_groups(dice, c);
        c.times.boundary_s = dice.real(c.times.forward_s, 6);
      },
      1);
}

TEST(Transfers, InterleavedUpToAChunk) {
  expect_exact(25, [](Dice& dice, Case& c) {
    draw_chunks(dice, c);
    c.schedule.micro_batches = c.schedule.pipeline * dice.whole(1, 3);
    c.times.boundary_s = dice.real(0, static_cast<double>(layers_a_chunk(c.schedule)) * c.times.forward_s);
  });
}

}  // namespace
}  // namespace lamina
