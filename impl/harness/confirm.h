// Plans that a search found by the closed forms, judged by their schedules: built by the same passes as any that is
// run, verified, and put on a clock with the forms' own times of a layer.
#pragma once

#include <deque>

#include "impl/analysis/confirmation.h"
#include "impl/simulator/simulate.h"

namespace lamina {

// What is worth its time, on one core: a schedule of the most ops is built and simulated in some seconds. The
// verifier's clocks have an entry for each pipeline rank, so that its time and memory (64 bytes an op and rank) go with
// ops times ranks.
struct ConfirmLimits {
  std::int64_t most_ops = 3'000'000;                 // of a schedule, all pipeline ranks together
  std::int64_t most_verified_ops_ranks = 4'000'000;  // ops times pipeline ranks
};

// What the plan's schedule has, before it is built: passes of layers, embedding and head, transfers, gathers (resident
// layers' too) and reductions (an all-reduce counts twice).
double about_ops(const analysis::StepPlan& plan, std::int64_t layers);

// The forms' times as costs of ops: a layer's forward, backward, gather, reduction and all-reduce, and a transfer.
// Tensor collectives are inside forward and backward. Embedding, head, updates and control messages take no time.
OpCost layer_costs(const analysis::LayerTimes& times);

// The schedule of a plan, for its tensor rank 0: all of a group run the same. Throws UsageError where no method can run
// the plan (analysis::StepPlan says more than schedules hold).
Schedule schedule_of_plan(const analysis::StepPlan& plan, const ModelShape& model);

// Throws Error when the verifier refuses the schedule: a method or a pass is wrong then.
analysis::Confirmation confirm(const analysis::PlanCost& cost, const ModelShape& model,
                               const ConfirmLimits& limits = {});

// The same, each plan with the same times once.
class Confirmer {
 public:
  explicit Confirmer(const ConfirmLimits& limits = {}) : limits_(limits) {}
  const analysis::Confirmation& operator()(const analysis::PlanCost& cost, const ModelShape& model);
  // What it has said of the plan before; null where it has said nothing.
  const analysis::Confirmation* known(const analysis::PlanCost& cost, const ModelShape& model) const;
  std::size_t judged() const { return done_.size(); }

 private:
  struct Done {
    analysis::StepPlan plan;
    analysis::LayerTimes times;
    ModelShape model;
    analysis::Confirmation confirmation;
  };
  ConfirmLimits limits_;
  std::deque<Done> done_;  // stays in place as it grows
};

}  // namespace lamina
