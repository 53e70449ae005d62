#include "impl/schedule/build.h"

#include "impl/base/error.h"
#include "impl/schedule/passes.h"

namespace lamina {
namespace {

void require_range(std::int64_t value, std::int64_t low, std::int64_t high, const char* key) {
  if (value < low || value > high) {
    throw UsageError(fmt::format("{} is {}; it must be from {} to {}", key, value, low, high));
  }
}

}  // namespace

Plan resolve_plan(const Method& method, const ModelShape& model, const Batch& batch, const PlanRequest& request,
                  bool update_after_norm) {
  constexpr std::int64_t kMost = 1'000'000'000;
  validate(model);
  require_range(request.parallel.data, 1, kMost, "parallel.data");
  require_range(request.parallel.pipeline, 1, kMost, "parallel.pipeline");
  require_range(request.parallel.tensor, 1, kMost, "parallel.tensor");
  require_range(request.zero_stage, 0, 3, "zero_stage");
  if (request.parallel.tensor != 1) {
    throw UsageError(fmt::format("parallel.tensor is {}; this build runs tensor degree 1", request.parallel.tensor));
  }
  Plan plan;
  plan.model = model;
  plan.method = method.name;
  plan.parallel = request.parallel;
  plan.zero_stage = request.zero_stage;
  plan.recompute = request.recompute;
  plan.micro_batch_size = batch.micro;
  plan.micro_batches = micro_batches_of(batch, request.parallel.data);
  plan.groups = request.groups.value_or(1);
  plan.chunks = request.chunks.value_or(1);
  plan.prefetch_layers = request.prefetch_layers.value_or(1);
  plan.resident_layers = request.resident_layers.value_or(2);
  plan.keep_full_gradient = request.keep_full_gradient;
  plan.update_after_norm = update_after_norm;
  require_range(plan.groups, 1, plan.micro_batches, "groups");
  require_range(plan.chunks, 1, model.layers, "chunks");
  require_range(plan.prefetch_layers, 0, kMost, "prefetch_layers");
  require_range(plan.resident_layers, 1, kMost, "resident_layers");
  if (plan.zero_stage != 3 && (request.resident_layers || request.prefetch_layers)) {
    throw UsageError(
        fmt::format("resident_layers and prefetch_layers belong to zero_stage 3; it is {}", plan.zero_stage));
  }
  if (plan.keep_full_gradient && plan.zero_stage < 2) {
    throw UsageError(fmt::format("keep_full_gradient belongs to zero_stage 2 and 3; zero_stage {} keeps it anyway",
                                 plan.zero_stage));
  }
  if (plan.parallel.pipeline > model.layers) {
    throw UsageError(
        fmt::format("parallel.pipeline is {}, but the model has only {} layers; every pipeline rank "
                    "needs at least one",
                    plan.parallel.pipeline, model.layers));
  }
  method.resolve(plan, request);
  return plan;
}

Schedule build_schedule(const Method& method, const Plan& plan) {
  std::vector<std::int64_t> owner;
  for (std::int64_t layer = 0; layer < plan.model.layers; ++layer) {
    owner.push_back(method.owner(plan, layer));
  }
  const auto order = place_embedding_and_head(method.order(plan), plan.model.layers);
  const auto timeline = unit_timeline(order, owner, plan.recompute == Recompute::full);
  std::vector<PartitionPlan> partitions;
  for (const auto& ops : order) {
    partitions.push_back(partition(ops, plan));
  }
  return assemble(plan, owner, order, timeline, partitions);
}

}  // namespace lamina
