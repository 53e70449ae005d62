// What compute orders are made of: pieces that several methods share.
#pragma once

#include <cstdint>
#include <vector>

#include "impl/schedule/build.h"
#include "impl/schedule/schedule.h"

namespace lamina {

// [first, first + count)
struct Range {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// `count` things in `parts` consecutive ranges as equal as possible, the larger ones first.
std::vector<Range> split_evenly(std::int64_t count, std::int64_t parts);

// Owner of a layer where each pipeline rank has consecutive layers.
std::int64_t consecutive_owner(const Plan& plan, std::int64_t layer);

// One micro-batch forward (or backward) through consecutive layers.
void append_pass(std::vector<ComputeStep>& order, bool forward, Range layers, std::int32_t micro_batch,
                 std::int32_t group);

// Groups of micro-batches one after another, each taken whole through one layer after another and back again:
// the layered order of the given layers.
std::vector<ComputeStep> layered_order(const std::vector<std::int32_t>& layers, const std::vector<Range>& groups);

// Refusals that several methods share; each throws UsageError with the rule.
void require_no_pipeline(const Plan& plan);
void refuse_chunks(const Plan& plan, const PlanRequest& request);
void refuse_groups(const Plan& plan, const PlanRequest& request);
// Groups must divide the micro-batches.
void require_groups_divide(const Plan& plan);

}  // namespace lamina
