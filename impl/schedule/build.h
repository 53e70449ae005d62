// From a plan to a verified schedule: the one way in for everything that needs one.
#pragma once

#include "impl/plan/plan.h"
#include "impl/schedule/schedule.h"

namespace lamina {

// A method decides which pipeline rank owns a layer and in which order a rank computes. One source file each and one
// line in the registry's table (impl/harness/registry.cpp).
struct Method {
  std::string_view name;         // "layered_accumulation"
  std::string_view description;  // one line for `lamina info`
  // Fills in what the request left open and throws UsageError with the rule when the plan cannot be made.
  // `plan` comes with model, parallel, batch and the request's explicit values already in place.
  void (*resolve)(Plan& plan, const PlanRequest& request);
  std::int64_t (*owner)(const Plan& plan, std::int64_t layer);  // pipeline rank
  ComputeOrder (*order)(const Plan& plan);
};

// Resolves a request for a method. update_after_norm: see Plan. Throws UsageError.
Plan resolve_plan(const Method& method, const ModelShape& model, const Batch& batch, const PlanRequest& request,
                  bool update_after_norm);

// Runs every pass. The result is complete; verify() is the caller's next step.
Schedule build_schedule(const Method& method, const Plan& plan);

}  // namespace lamina
