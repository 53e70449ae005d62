#include "impl/analysis/cost.h"

#include <algorithm>
#include <cmath>

#include "impl/base/error.h"

namespace lamina::analysis {

Rates rates_of(const Cluster& cluster, const std::string& precision, std::int64_t hidden, RateKind kind) {
  const auto peak = cluster.device.peak_flops_per_s.find(precision);
  if (peak == cluster.device.peak_flops_per_s.end()) {
    std::string known;
    for (const auto& [name, unused] : cluster.device.peak_flops_per_s) {
      known += (known.empty() ? "" : ", ") + name;
    }
    throw UsageError(
        fmt::format("device {} has no peak rate for precision '{}'; it has {}", cluster.device.name, precision, known));
  }
  const auto bytes_per_s = kind == RateKind::nominal ? nominal_bytes_per_s : reached_bytes_per_s;
  const double share = kind == RateKind::nominal ? 1 : share_of_peak(cluster.device, static_cast<double>(hidden));
  return {.flops_per_s = peak->second.value * share,
          .tensor_bytes_per_s = bytes_per_s(cluster.node),
          .network_bytes_per_s = bytes_per_s(cluster.network),
          .share_of_peak = share};
}

std::string_view name_of(Storage storage) {
  switch (storage) {
    case Storage::device:
      return "device";
    case Storage::host:
      return "host";
    case Storage::disk:
      return "disk";
  }
  return "?";
}

Storage storage_named(std::string_view name) {
  for (const Storage storage : {Storage::device, Storage::host, Storage::disk}) {
    if (name == name_of(storage)) {
      return storage;
    }
  }
  throw UsageError(fmt::format("storage '{}' is not known; it is device, host or disk", name));
}

StorageRates storage_rates_of(const Cluster& cluster, RateKind kind) {
  const auto bytes_per_s = kind == RateKind::nominal ? nominal_bytes_per_s : reached_bytes_per_s;
  StorageRates rates;
  if (cluster.host) {
    rates.host_bytes_per_s = bytes_per_s(*cluster.host);
    rates.host_capacity_bytes = cluster.host->capacity_bytes->value;
  }
  if (cluster.disk) {
    rates.disk_bytes_per_s = bytes_per_s(*cluster.disk);
    rates.disk_capacity_bytes = cluster.disk->capacity_bytes->value;
  }
  return rates;
}

void validate(const Setting& setting) {
  validate_for_forms(setting.model);
  validate(setting.rates);
  if (!(setting.critical_batch_tokens > 0) || !std::isfinite(setting.critical_batch_tokens)) {
    throw UsageError(fmt::format("the critical batch is {} tokens; it must be above 0", setting.critical_batch_tokens));
  }
  if (setting.critical_batch() < 1) {
    throw UsageError(
        fmt::format("the critical batch, {:.6g} tokens, is smaller than one sequence of {} tokens; no plan can use it",
                    setting.critical_batch_tokens, setting.model.sequence));
  }
  const auto offers = [&](Storage storage, double bytes_per_s, double capacity) {
    const bool used = setting.offload.state == storage || setting.offload.checkpoints == storage;
    if (used && !(bytes_per_s > 0 && capacity > 0)) {
      throw UsageError(
          fmt::format("offload to {}: the cluster describes no {} link", name_of(storage), name_of(storage)));
    }
  };
  offers(Storage::host, setting.offload.rates.host_bytes_per_s, setting.offload.rates.host_capacity_bytes);
  offers(Storage::disk, setting.offload.rates.disk_bytes_per_s, setting.offload.rates.disk_capacity_bytes);
}

namespace {

// Bytes of state and checkpoints that leave the device.
struct Offloaded {
  double state = 0;
  double checkpoints = 0;
};

Offloaded offloaded_bytes(const StepPlan& plan, const Setting& setting) {
  const MemoryBytes whole = memory_of(plan, setting.model, setting.wire);
  Offloaded bytes;
  if (setting.offload.state != Storage::device) {
    bytes.state = whole.parameters + whole.gradients + whole.optimizer;
  }
  if (setting.offload.checkpoints != Storage::device) {
    bytes.checkpoints = whole.checkpoints;
  }
  return bytes;
}

}  // namespace

OffloadNeed offload_need(const StepPlan& plan, const Setting& setting, const LayerTimes& times, double step_s) {
  const Offloaded bytes = offloaded_bytes(plan, setting);
  OffloadNeed need{.state_bytes = bytes.state, .checkpoint_bytes = bytes.checkpoints};
  const auto rate_to = [&](Storage storage) -> double& {
    return storage == Storage::host ? need.host_bytes_per_s : need.disk_bytes_per_s;
  };
  if (setting.offload.state != Storage::device) {
    const Stages stages = stages_of(setting.model.layers, plan.pipeline);
    const double split = plan.zero_stage == 3 ? static_cast<double>(plan.data) : 1;
    const double parameters =
        layer_parameters(setting.model) * stages.layers_each / (static_cast<double>(plan.tensor) * split);
    const double groups = static_cast<double>(plan.group_count());
    const bool disk = setting.offload.state == Storage::disk;
    const double to_device = 4 * groups + (disk ? 12 : 0);
    const double from_device = setting.wire.gradient * groups + (disk ? 14 : 0);
    rate_to(setting.offload.state) += std::max(to_device, from_device) * parameters / step_s;
  }
  if (setting.offload.checkpoints != Storage::device) {
    rate_to(setting.offload.checkpoints) += checkpoint_bytes(plan, setting.model, setting.wire) / times.forward_s;
  }
  return need;
}

bool links_suffice(const OffloadNeed& need, const Offload& offload) {
  return need.host_bytes_per_s <= offload.rates.host_bytes_per_s &&
         need.disk_bytes_per_s <= offload.rates.disk_bytes_per_s;
}

MemoryBytes device_memory(const StepPlan& plan, const Setting& setting) {
  MemoryBytes memory = memory_of(plan, setting.model, setting.wire);
  if (setting.offload.state != Storage::device) {
    const double layer = layer_parameters(setting.model) / static_cast<double>(plan.tensor);
    memory.parameters = memory.gradients = memory.optimizer = 0;
    memory.buffers = std::max(memory.buffers, 2 * (setting.wire.parameter + setting.wire.gradient) * layer);
  }
  if (setting.offload.checkpoints != Storage::device) {
    memory.checkpoints = std::min(memory.checkpoints, 2 * checkpoint_bytes(plan, setting.model, setting.wire));
  }
  return memory;
}

bool storage_suffices(const StepPlan& plan, const Setting& setting) {
  const Offloaded bytes = offloaded_bytes(plan, setting);
  const auto stored_at = [&](Storage storage) {
    return (setting.offload.state == storage ? bytes.state : 0) +
           (setting.offload.checkpoints == storage ? bytes.checkpoints : 0);
  };
  return stored_at(Storage::host) <= setting.offload.rates.host_capacity_bytes &&
         stored_at(Storage::disk) <= setting.offload.rates.disk_capacity_bytes;
}

PlanCost cost_of(const StepPlan& plan, const Setting& setting) {
  const Stages stages = stages_of(setting.model.layers, plan.pipeline);
  PlanCost cost;
  cost.plan = plan;
  cost.layer = layer_times(setting.model, plan, setting.rates, setting.wire);
  cost.step = step_time(plan, stages, cost.layer);
  cost.memory = device_memory(plan, setting);
  cost.offload = offload_need(plan, setting, cost.layer, cost.step.total_s);
  cost.traffic = data_traffic(plan, std::llround(stages.layers_each), kGatheredLayers, 0);
  cost.data_bytes_sent = data_bytes_sent(cost.traffic, setting.model, plan, setting.wire);
  const double boundary = static_cast<double>(plan.micro_batch * setting.model.sequence * setting.model.hidden) *
                          setting.wire.activation / static_cast<double>(plan.tensor);
  cost.boundary_bytes_sent = 2 * boundaries_crossed(plan, setting.model.layers) *
                             static_cast<double>(plan.micro_batches) * boundary / stages.ranks;
  const double batch = static_cast<double>(plan.batch());
  cost.share_of_critical_batch = batch / setting.critical_batch();
  cost.steps = training_steps(setting.step_rule, cost.share_of_critical_batch);
  cost.training_s = cost.steps * cost.step.total_s;
  const double peak_flops_per_s = setting.rates.flops_per_s / setting.rates.share_of_peak;
  const double peak_flops = static_cast<double>(plan.devices()) * peak_flops_per_s * cost.step.total_s;
  cost.model_utilisation = model_step_flops(setting.model, batch) / peak_flops;
  cost.hardware_utilisation = hardware_step_flops(setting.model, batch, plan.recompute) / peak_flops;
  return cost;
}

nlohmann::ordered_json to_json(const StepPlan& plan) {
  return {{"method", name_of(plan.order)},
          {"parallel", {{"data", plan.data}, {"pipeline", plan.pipeline}, {"tensor", plan.tensor}}},
          {"gpus", plan.devices()},
          {"micro_batch", plan.micro_batch},
          {"micro_batches", plan.micro_batches},
          {"global_batch", plan.batch()},
          {"groups", plan.group_count()},
          {"chunks", plan.chunks},
          {"zero_stage", plan.zero_stage},
          {"recompute", name_of(plan.recompute)}};
}

nlohmann::ordered_json to_json(const MemoryBytes& memory) {
  return {{"parameters_bytes", memory.parameters},
          {"gradients_bytes", memory.gradients},
          {"optimizer_bytes", memory.optimizer},
          {"buffers_bytes", memory.buffers},
          {"checkpoints_bytes", memory.checkpoints},
          {"working_set_bytes", memory.working_set},
          {"total_bytes", memory.total()}};
}

nlohmann::ordered_json to_json(const PlanCost& cost) {
  nlohmann::ordered_json result = to_json(cost.plan);
  result["step_time_s"] = cost.step.total_s;
  result["work_s"] = cost.step.work_s;
  result["bubble_s"] = cost.step.bubble_s;
  result["boundary_s"] = cost.step.boundary_s;
  result["exposed_data_s"] = cost.step.exposed_data_s;
  result["share_of_critical_batch"] = cost.share_of_critical_batch;
  result["steps"] = cost.steps;
  result["training_days"] = cost.training_s / seconds_per_day;
  result["model_flops_utilisation"] = cost.model_utilisation;
  result["hardware_flops_utilisation"] = cost.hardware_utilisation;
  result["data_bytes_sent"] = cost.data_bytes_sent;
  result["boundary_bytes_sent"] = cost.boundary_bytes_sent;
  result["memory"] = to_json(cost.memory);
  result["offload"] = {{"state_bytes", cost.offload.state_bytes},
                       {"checkpoint_bytes", cost.offload.checkpoint_bytes},
                       {"host_bytes_per_s_needed", cost.offload.host_bytes_per_s},
                       {"disk_bytes_per_s_needed", cost.offload.disk_bytes_per_s}};
  return result;
}

}  // namespace lamina::analysis
