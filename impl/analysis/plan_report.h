// The answer of `lamina plan`: a search's result as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "impl/analysis/confirmation.h"
#include "impl/analysis/search.h"

namespace lamina::analysis {

// The fastest plan over all tracks. Throws UsageError with the counts of refusals when no plan was found.
PlanCost fastest_plan(const SearchResult& result, const SearchOptions& options);

// The first `plans` of each track's best are confirmed.
struct Confirming {
  std::size_t plans = 0;
  Confirm confirm;
};

// Per track the best plans, those confirmed beside their forms, then why plans were refused. Header lines start with
// '#'.
std::string plan_table(const SearchResult& result, const SearchOptions& options, const Confirming& confirming = {});

// {"complete", "seconds", "critical_batch_sequences", "counts", "tracks": [{"name", "best": […], "frontier": […]}]}; a
// confirmed plan has "simulated" (confirmation.h) beside its cost.
nlohmann::ordered_json plan_json(const SearchResult& result, const SearchOptions& options,
                                 const Confirming& confirming = {});

}  // namespace lamina::analysis
