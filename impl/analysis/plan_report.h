// The answer of `lamina plan`: a search's result as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "impl/analysis/search.h"

namespace lamina::analysis {

// The fastest plan over all tracks. Throws UsageError with the counts of refusals when no plan was found.
PlanCost fastest_plan(const SearchResult& result, const SearchOptions& options);

// Per track the best plans, then why plans were refused. Header lines start with '#'.
std::string plan_table(const SearchResult& result, const SearchOptions& options);

// {"complete", "seconds", "critical_batch_sequences", "counts", "tracks": [{"name", "best": […], "frontier": […]}]}
nlohmann::ordered_json plan_json(const SearchResult& result, const SearchOptions& options);

}  // namespace lamina::analysis
