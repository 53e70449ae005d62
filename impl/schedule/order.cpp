#include "impl/schedule/order.h"

#include "impl/base/error.h"

namespace lamina {

std::vector<Range> split_evenly(std::int64_t count, std::int64_t parts) {
  std::vector<Range> ranges;
  std::int64_t first = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t size = count / parts + (part < count % parts ? 1 : 0);
    ranges.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(size)});
    first += size;
  }
  return ranges;
}

std::int64_t consecutive_owner(const Plan& plan, std::int64_t layer) {
  const std::int64_t size = plan.model.layers / plan.parallel.pipeline;
  const std::int64_t larger = plan.model.layers % plan.parallel.pipeline;  // ranks with one layer more
  const std::int64_t in_larger = larger * (size + 1);
  return layer < in_larger ? layer / (size + 1) : larger + (layer - in_larger) / size;
}

void append_pass(std::vector<ComputeStep>& order, bool forward, Range layers, std::int32_t micro_batch,
                 std::int32_t group) {
  for (std::int32_t i = 0; i < layers.count; ++i) {
    const std::int32_t layer = layers.first + (forward ? i : layers.count - 1 - i);
    order.push_back({forward, layer, micro_batch, group});
  }
}

std::vector<ComputeStep> layered_order(const std::vector<std::int32_t>& layers, const std::vector<Range>& groups) {
  std::vector<ComputeStep> order;
  for (std::int32_t group = 0; group < std::ssize(groups); ++group) {
    const Range micro_batches = groups[static_cast<std::size_t>(group)];
    const auto layer_pass = [&](bool forward, std::int32_t layer) {
      for (std::int32_t i = 0; i < micro_batches.count; ++i) {
        order.push_back({forward, layer, micro_batches.first + i, group});
      }
    };
    for (auto layer = layers.begin(); layer != layers.end(); ++layer) {
      layer_pass(true, *layer);
    }
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      layer_pass(false, *layer);
    }
  }
  return order;
}

void require_no_pipeline(const Plan& plan) {
  if (plan.parallel.pipeline != 1) {
    throw UsageError(
        fmt::format("method {} runs without a pipeline; parallel.pipeline is {}", plan.method, plan.parallel.pipeline));
  }
}

void refuse_chunks(const Plan& plan, const PlanRequest& request) {
  if (request.chunks) {
    throw UsageError(fmt::format("method {} takes no chunks; interleaved_one_f_one_b does", plan.method));
  }
}

void refuse_groups(const Plan& plan, const PlanRequest& request) {
  if (request.groups) {
    throw UsageError(
        fmt::format("method {} takes no groups; layered_accumulation and modular_pipeline do", plan.method));
  }
}

void require_groups_divide(const Plan& plan) {
  if (plan.micro_batches % plan.groups != 0) {
    throw UsageError(fmt::format("groups is {}, which does not divide the {} micro-batches of a rank", plan.groups,
                                 plan.micro_batches));
  }
}

}  // namespace lamina
