// What one plan costs: the closed forms put together for a model on a cluster.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "impl/analysis/batch_law.h"
#include "impl/analysis/forms.h"
#include "impl/plan/cluster.h"

namespace lamina::analysis {

// nominal: the data sheets' rates, what the paper's figures use; reached: times the cluster file's efficiencies.
enum class RateKind : std::uint8_t { nominal, reached };
// Throws UsageError when the device has no rate for the precision.
Rates rates_of(const Cluster& cluster, const std::string& precision, std::int64_t hidden, RateKind kind);

// Where training state (parameters, gradients, optimizer) and checkpoints live.
enum class Storage : std::uint8_t { device, host, disk };
std::string_view name_of(Storage storage);
Storage storage_named(std::string_view name);  // throws UsageError

// What a device can move to and keep in its host's memory and on its disks; 0 where the cluster has none.
struct StorageRates {
  double host_bytes_per_s = 0;
  double host_capacity_bytes = 0;
  double disk_bytes_per_s = 0;
  double disk_capacity_bytes = 0;
};
StorageRates storage_rates_of(const Cluster& cluster, RateKind kind);

struct Offload {
  Storage state = Storage::device;
  Storage checkpoints = Storage::device;
  StorageRates rates;
  bool active() const { return state != Storage::device || checkpoints != Storage::device; }
};

// Everything beside the plan that its cost depends on.
struct Setting {
  ModelShape model;
  Rates rates;
  WireBytes wire;
  double critical_batch_tokens = 0;
  StepRule step_rule = StepRule::same_tokens;
  Offload offload;
  double critical_batch() const {  // sequences
    return critical_batch_tokens / static_cast<double>(model.sequence);
  }
};
// Throws UsageError with one line on a bad model, rate or batch.
void validate(const Setting& setting);

// What offloading moves and keeps, per device. State: with update on the host, each group brings the parameters twice
// (2 · 2 bytes) and takes the gradients once (w_r bytes); on disk the optimizer state (12 bytes) also comes and goes
// once a step and the new parameters go. The two directions run at once; the larger counts, spread over the whole step.
// Checkpoints: one leaves in the time of a layer's forward pass.
struct OffloadNeed {
  double state_bytes = 0;
  double checkpoint_bytes = 0;
  double host_bytes_per_s = 0;
  double disk_bytes_per_s = 0;
};
OffloadNeed offload_need(const StepPlan& plan, const Setting& setting, const LayerTimes& times, double step_s);
bool links_suffice(const OffloadNeed& need, const Offload& offload);

// Memory on the device: memory_of, less what is offloaded, with two layers' parameters and gradients and two
// checkpoints as the windows that offloaded data passes through.
MemoryBytes device_memory(const StepPlan& plan, const Setting& setting);
// Whether what is offloaded fits where it goes.
bool storage_suffices(const StepPlan& plan, const Setting& setting);

struct PlanCost {
  StepPlan plan;
  LayerTimes layer;
  StepTime step;
  MemoryBytes memory;
  OffloadNeed offload;
  DataTraffic traffic;             // pipeline rank 0, two layers resident
  double data_bytes_sent = 0;      // a rank and step
  double boundary_bytes_sent = 0;  // a tensor rank and step, both directions, averaged over the pipeline's ranks
  double share_of_critical_batch = 0;
  double steps = 0;
  double training_s = 0;
  double model_utilisation = 0;     // model FLOPs (recomputation not counted) over peak FLOPs of all devices
  double hardware_utilisation = 0;  // with recomputation counted
};
PlanCost cost_of(const StepPlan& plan, const Setting& setting);

// For results: the plan alone, and with its cost. Units are in the key names.
nlohmann::ordered_json to_json(const StepPlan& plan);
nlohmann::ordered_json to_json(const MemoryBytes& memory);
nlohmann::ordered_json to_json(const PlanCost& cost);

constexpr double seconds_per_day = 86400;

}  // namespace lamina::analysis
