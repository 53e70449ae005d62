#include "impl/harness/simulated_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "impl/analysis/cost.h"
#include "impl/analysis/ends.h"
#include "impl/base/error.h"
#include "impl/harness/step_plan.h"

namespace lamina {
namespace {

constexpr double kControlBytes = 8;  // a number in double precision

// Bandwidth and latency that a group or a message meets.
struct Tier {
  double bytes_per_s = 0;
  double latency_s = 0;
};

class Costs {
 public:
  Costs(const Cluster& cluster, const Plan& plan, const Precision& precision, OptimizerConfig::Kind optimizer)
      : cluster_(cluster),
        plan_(plan),
        width_(static_cast<double>(bytes_of(precision.compute))),
        reduce_width_(static_cast<double>(bytes_of(precision.reduce))) {
    const analysis::Rates rates = analysis::rates_of(cluster, std::string(name_of(precision.compute)),
                                                     plan.model.hidden, analysis::RateKind::reached);
    layer_ = analysis::compute_times(plan.model, static_cast<double>(plan.micro_batch_size), 1, false, plan.recompute,
                                     rates, {});
    const auto wide = [](std::int64_t value) { return static_cast<double>(value); };
    activations_ = wide(plan.micro_batch_size) * wide(plan.model.sequence) * wide(plan.model.hidden);
    head_s_ = analysis::head_time(plan.model, wide(plan.micro_batch_size), 1, rates);
    constexpr double kActivationPasses = 3;
    embedding_s_ = kActivationPasses * activations_ * width_ / cluster.device.memory_bytes_per_s.value;
    update_s_per_parameter_ =
        analysis::update_bytes_per_parameter(wide(moments_of(optimizer)), wide(bytes_of(precision.wide()))) /
        cluster.device.memory_bytes_per_s.value;
  }

  double operator()(std::int64_t pipeline_rank, const Op& op) const {
    switch (op.kind) {
      case OpKind::forward:
        return op.unit.kind == UnitKind::layer ? layer_.forward_s : embedding_s_;
      case OpKind::backward:
        return op.unit.kind == UnitKind::layer ? layer_.backward_s : embedding_s_;
      case OpKind::loss:
        return head_s_;
      case OpKind::send:
      case OpKind::receive: {
        const Tier tier = tier_between(pipeline_rank, op.peer);
        return static_cast<double>(op.elements) * width_ / tier.bytes_per_s + tier.latency_s;
      }
      case OpKind::gather:
        return ring(data_tier(pipeline_rank), static_cast<double>(op.elements) * width_);
      case OpKind::reduce:
        return ring(data_tier(pipeline_rank), static_cast<double>(op.elements) * reduce_width_);
      case OpKind::all_reduce:
        return 2 * ring(data_tier(pipeline_rank), static_cast<double>(op.elements) * reduce_width_);
      case OpKind::update:
        return static_cast<double>(updated_parameters(op.unit)) * update_s_per_parameter_;
      case OpKind::count:
      case OpKind::loss_total:
        return rounds(data_tier(pipeline_rank), plan_.parallel.data);
      case OpKind::norm:
        return rounds(tier_of(0, plan_.parallel.ranks() - 1), plan_.parallel.ranks());
      case OpKind::copy_in:
      case OpKind::copy_out: {
        LAMINA_CHECK(cluster_.host.has_value(), "cluster {} has no link to host memory", cluster_.name);
        return static_cast<double>(op.elements) * width_ / reached_bytes_per_s(*cluster_.host) +
               cluster_.host->latency_s.value;
      }
    }
    return 0;
  }

 private:
  // All ranks from one to another: they share a node when the first and the last do.
  Tier tier_of(std::int64_t first, std::int64_t last) const {
    const auto node_size = std::max<std::int64_t>(1, std::llround(cluster_.node_size.value));
    const Link& link = first / node_size == last / node_size ? cluster_.node : cluster_.network;
    return {reached_bytes_per_s(link), link.latency_s.value};
  }
  Tier data_tier(std::int64_t pipeline_rank) const {
    return tier_of(rank_of({.data = 0, .pipeline = pipeline_rank, .tensor = 0}, plan_.parallel),
                   rank_of({.data = plan_.parallel.data - 1, .pipeline = pipeline_rank, .tensor = 0}, plan_.parallel));
  }
  // The slowest of the data-parallel copies of the message decides when all go on.
  Tier tier_between(std::int64_t one, std::int64_t other) const {
    Tier slowest;
    for (std::int64_t data = 0; data < plan_.parallel.data; ++data) {
      const Tier tier = tier_of(rank_of({.data = data, .pipeline = one, .tensor = 0}, plan_.parallel),
                                rank_of({.data = data, .pipeline = other, .tensor = 0}, plan_.parallel));
      if (data == 0 || tier.bytes_per_s < slowest.bytes_per_s) {
        slowest = tier;
      }
    }
    return slowest;
  }

  double ring(const Tier& tier, double bytes) const {
    const auto ranks = static_cast<double>(plan_.parallel.data);
    return analysis::ring_gather_time(bytes, ranks, tier.bytes_per_s) + (ranks - 1) * tier.latency_s;
  }
  static double rounds(const Tier& tier, std::int64_t ranks) {
    return static_cast<double>(ranks - 1) * (kControlBytes / tier.bytes_per_s + tier.latency_s);
  }
  std::int64_t updated_parameters(Unit unit) const {
    const std::int64_t all = padded(unit_parameters(plan_.model, unit), plan_.parallel.data);
    return plan_.zero_stage == 0 ? all : all / plan_.parallel.data;
  }

  Cluster cluster_;  // its own: costs are handed on
  Plan plan_;
  double width_;         // bytes of a weight or an activation
  double reduce_width_;  // bytes of a gradient on the wire
  analysis::LayerTimes layer_;
  double activations_ = 0;
  double head_s_ = 0;
  double embedding_s_ = 0;
  double update_s_per_parameter_ = 0;
};

TrafficKind traffic_kind_of(const Op& op) {
  if (op.kind == OpKind::send) {
    return TrafficKind::pipeline_send;
  }
  return op.kind == OpKind::gather ? TrafficKind::data_gather : TrafficKind::data_reduce;
}

// A trace with a pipeline rank's events at each of its data-parallel copies, which all do the same.
Trace for_all_ranks(const Trace& trace, const Parallel& parallel) {
  Trace all;
  for (const TraceEvent& event : trace) {
    for (std::int64_t data = 0; data < parallel.data; ++data) {
      TraceEvent copy = event;
      copy.rank = static_cast<std::int32_t>(rank_of({.data = data, .pipeline = event.rank, .tensor = 0}, parallel));
      all.push_back(copy);
    }
  }
  return all;
}

}  // namespace

OpCost cluster_costs(const Cluster& cluster, const Plan& plan, const Precision& precision,
                     OptimizerConfig::Kind optimizer) {
  return Costs(cluster, plan, precision, optimizer);
}

RankMemory memory_of_slots(const Schedule& schedule, std::int64_t pipeline_rank, const Precision& precision,
                           OptimizerConfig::Kind optimizer) {
  const Plan& plan = schedule.plan;
  const ModelShape& model = plan.model;
  const std::int64_t width = bytes_of(precision.compute);
  const std::int64_t wide = bytes_of(precision.wide());  // of gradients, moments and masters
  const std::int64_t activation = plan.micro_batch_size * model.sequence * model.hidden;
  analysis::StepPlan form_plan = step_plan_of(plan);
  form_plan.recompute = Recompute::full;  // working set of the layer in flight, whatever else is kept
  constexpr double kFormWidth = 2;        // the form counts 16-bit values
  const double layer_working_set = analysis::memory_of(form_plan, model, {}).working_set / kFormWidth;
  RankMemory memory;
  for (const Slot& slot : schedule.programs.at(static_cast<std::size_t>(pipeline_rank)).slots) {
    const std::int64_t elements = padded(unit_parameters(model, slot.unit), plan.parallel.data);
    const std::int64_t whole = elements * width;
    switch (slot.kind) {
      case SlotKind::parameters:
        (plan.zero_stage == 3 ? memory.gathered : memory.parameters) += whole;
        break;
      case SlotKind::parameter_shard:
        memory.parameters += whole / plan.parallel.data;
        break;
      case SlotKind::gradient:
        (plan.zero_stage >= 2 && !plan.keep_full_gradient ? memory.gathered : memory.gradients) += elements * wide;
        break;
      case SlotKind::gradient_shard:
        memory.gradients += elements / plan.parallel.data * wide;
        break;
      case SlotKind::checkpoint:
        memory.checkpoints += activation * width;
        break;
      case SlotKind::activation_gradient:
        memory.working_set += activation * width;
        break;
      case SlotKind::saved:
        memory.working_set += slot.unit.kind == UnitKind::layer
                                  ? std::llround(layer_working_set * static_cast<double>(width))
                                  : plan.micro_batch_size * model.sequence * model.vocabulary * width;
        break;
      case SlotKind::target_count:
      case SlotKind::loss_sum:
      case SlotKind::gradient_norm:
        break;
    }
  }
  for (const Op& op : schedule.programs.at(static_cast<std::size_t>(pipeline_rank)).ops) {
    if (op.kind == OpKind::update) {
      const std::int64_t all = padded(unit_parameters(model, op.unit), plan.parallel.data);
      memory.optimizer += (moments_of(optimizer) + (precision.has_masters() ? 1 : 0)) * wide *
                          (plan.zero_stage == 0 ? all : all / plan.parallel.data);
    }
  }
  return memory;
}

StepTraffic traffic_of_ops(const Schedule& schedule, std::int64_t pipeline_rank, const Precision& precision) {
  const std::int64_t data = schedule.plan.parallel.data;
  StepTraffic traffic;
  for (const Op& op : schedule.programs.at(static_cast<std::size_t>(pipeline_rank)).ops) {
    const bool reduces = op.kind == OpKind::reduce || op.kind == OpKind::all_reduce;
    const std::int64_t bytes = op.elements * bytes_of(reduces ? precision.reduce : precision.compute);
    std::int64_t sent = 0;
    TrafficKind kind = traffic_kind_of(op);
    UnitKind unit = op.unit.kind;
    if (op.kind == OpKind::send) {
      sent = bytes;
    } else if (is_control(op.kind)) {
      kind = TrafficKind::control;
      unit = UnitKind::layer;
      const std::int64_t group = op.kind == OpKind::norm ? schedule.plan.parallel.ranks() : data;
      sent = (group - 1) * static_cast<std::int64_t>(kControlBytes);
    } else if (is_collective(op.kind)) {
      sent = bytes / data * (data - 1) * (op.kind == OpKind::all_reduce ? 2 : 1);
    }
    traffic.bytes[static_cast<std::size_t>(kind)][static_cast<std::size_t>(unit)] += sent;
  }
  return traffic;
}

TrainOutcome simulate_run(const TrainRequest& request, const Cluster& cluster) {
  const Schedule& schedule = request.schedule;
  const Plan& plan = schedule.plan;
  const Simulation simulation =
      simulate(schedule, cluster_costs(cluster, plan, request.precision, request.optimizer.kind));
  TrainOutcome outcome;
  StepRecord step;
  step.loss = step.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  step.counted_targets = plan.global_batch() * plan.model.sequence;
  for (std::int64_t rank = 0; rank < plan.parallel.ranks(); ++rank) {
    const std::int64_t pipeline = coordinates_of(rank, plan.parallel).pipeline;
    const double busy = simulation.compute_busy_s.at(static_cast<std::size_t>(pipeline));
    step.rank_time_s.push_back(simulation.step_time_s);
    step.rank_exposed_s.push_back(simulation.step_time_s - busy);
    step.rank_traffic.push_back(traffic_of_ops(schedule, pipeline, request.precision));
    outcome.rank_memory.push_back(memory_of_slots(schedule, pipeline, request.precision, request.optimizer.kind));
  }
  outcome.steps.push_back(std::move(step));
  outcome.layers_built = plan.model.layers;
  outcome.parameters_built = model_parameters(plan.model);
  if (request.trace) {
    outcome.trace = for_all_ranks(simulation.trace, plan.parallel);
  }
  return outcome;
}

}  // namespace lamina
