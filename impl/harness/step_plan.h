// A resolved plan in the words of the closed forms (impl/analysis/forms.h), and back.
#pragma once

#include "impl/analysis/forms.h"
#include "impl/plan/plan.h"

namespace lamina {

// The order that the forms know a method by; layered accumulation in several groups is the hybrid order. Throws Error
// for a method that has no form.
analysis::Order order_of(const Plan& plan);

analysis::StepPlan step_plan_of(const Plan& plan);

// What to ask of a method to get the plan's schedule, for one tensor rank: all of a tensor group run the same program.
PlanRequest request_of(const analysis::StepPlan& plan);

}  // namespace lamina
