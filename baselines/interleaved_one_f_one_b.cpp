// Interleaved 1F1B (arXiv 2104.04473): a rank has v chunks of consecutive layers, L chunks apart. Micro-batches go
// through the chunks in groups of at least L; each rank runs 2(L-1-r) + (v-1)·G chunk passes forward (G: the largest
// group) before it alternates.
#include <algorithm>

#include "baselines/baselines.h"
#include "baselines/pipelines.h"
#include "impl/base/error.h"

namespace lamina {
namespace {

void resolve(Plan& plan, const PlanRequest& request) {
  plan.chunks = request.chunks.value_or(2);
  if (plan.chunks * plan.parallel.pipeline > plan.model.layers) {
    throw UsageError(fmt::format("chunks is {}: {} chunks on {} pipeline ranks need at least {} layers; there are {}",
                                 plan.chunks, plan.chunks, plan.parallel.pipeline, plan.chunks * plan.parallel.pipeline,
                                 plan.model.layers));
  }
  // A group shorter than the pipeline would wait for itself: what is left over joins the other groups.
  const std::int64_t most_groups = std::max<std::int64_t>(1, plan.micro_batches / plan.parallel.pipeline);
  plan.groups = request.groups.value_or(most_groups);
  if (plan.groups > most_groups) {
    throw UsageError(
        fmt::format("groups is {}: interleaved 1F1B needs groups of at least {} micro-batches (the "
                    "pipeline ranks), so at most {} groups of the {} micro-batches",
                    plan.groups, plan.parallel.pipeline, most_groups, plan.micro_batches));
  }
}

std::vector<Range> stages(const Plan& plan) {
  return split_evenly(plan.model.layers, plan.chunks * plan.parallel.pipeline);
}

std::int64_t owner(const Plan& plan, std::int64_t layer) {
  const std::vector<Range> all = stages(plan);
  const auto stage =
      std::find_if(all.begin(), all.end(), [&](const Range& range) { return layer < range.first + range.count; });
  return (stage - all.begin()) % plan.parallel.pipeline;
}

struct ChunkPass {
  std::int64_t chunk = 0;
  std::int32_t micro_batch = 0;
  std::int32_t group = 0;
};

std::vector<ChunkPass> chunk_passes(const Plan& plan, bool forward) {
  std::vector<ChunkPass> passes;
  const std::vector<Range> groups = split_evenly(plan.micro_batches, plan.groups);
  for (std::int32_t group = 0; group < std::ssize(groups); ++group) {
    const Range micro_batches = groups[static_cast<std::size_t>(group)];
    for (std::int64_t i = 0; i < plan.chunks; ++i) {
      const std::int64_t chunk = forward ? i : plan.chunks - 1 - i;
      for (std::int32_t j = 0; j < micro_batches.count; ++j) {
        passes.push_back({chunk, micro_batches.first + j, group});
      }
    }
  }
  return passes;
}

ComputeOrder order(const Plan& plan) {
  const std::vector<Range> all = stages(plan);
  const std::vector<ChunkPass> forward = chunk_passes(plan, true);
  const std::vector<ChunkPass> backward = chunk_passes(plan, false);
  const std::int64_t passes = std::ssize(forward);
  const std::int64_t largest_group = split_evenly(plan.micro_batches, plan.groups).front().count;
  ComputeOrder ranks;
  for (std::int64_t rank = 0; rank < plan.parallel.pipeline; ++rank) {
    std::vector<ComputeStep>& steps = ranks.emplace_back();
    const auto add = [&](bool is_forward, const ChunkPass& pass) {
      const std::int64_t stage = pass.chunk * plan.parallel.pipeline + rank;
      append_pass(steps, is_forward, all[static_cast<std::size_t>(stage)], pass.micro_batch, pass.group);
    };
    const std::int64_t ahead =
        std::min(passes, 2 * (plan.parallel.pipeline - 1 - rank) + (plan.chunks - 1) * largest_group);
    for (std::int64_t i = 0; i < passes + ahead; ++i) {
      if (i < passes) {
        add(true, forward[static_cast<std::size_t>(i)]);
      }
      if (i >= ahead) {
        add(false, backward[static_cast<std::size_t>(i - ahead)]);
      }
    }
  }
  return ranks;
}

}  // namespace

const Method interleaved_one_f_one_b{"interleaved_one_f_one_b", "1F1B with several chunks of layers a rank", resolve,
                                     owner, order};

}  // namespace lamina
