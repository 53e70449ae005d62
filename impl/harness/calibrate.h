// Times each kind of op of a scenario's model on this machine, and what its ranks can send: a cluster file of here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "impl/harness/link_measure.h"
#include "impl/harness/prepare.h"
#include "impl/harness/report.h"
#include "impl/harness/statistics.h"

namespace lamina {

struct OpTiming {
  std::string unit;   // "embedding", "layer", "head"
  std::string kind;   // "forward", "backward", "loss" (the head's, both ways), "update"
  double cold_s = 0;  // median over ranks of the first time in a fresh process state: the first step's first op
  Summary alone;      // of all later ones, nothing sent beside them
  std::int64_t samples = 0;
  std::optional<Summary> beside;  // while the rank sent or received; nothing where no op met communication
  std::int64_t beside_samples = 0;
};

struct Calibration {
  std::int64_t ranks = 1;
  int threads_per_rank = 1;
  std::string precision;
  std::vector<OpTiming> ops;
  double peak_flops_per_s = 0;     // of one rank, a square matrix product, all ranks at once
  double layer_share_of_peak = 0;  // what a layer's forward and backward pass reach of it; at most 1
  double memory_bytes_per_s = 0;   // of one rank, from the update of a layer
  double memory_bytes = 0;         // of the machine, shared out
  EmulatedLink link;               // as it was asked for
  LinkMeasurement measured_link;   // between the ranks, or between two where there is one
};

// Runs the model of the scenario's first setting with as many data-parallel ranks as its widest run: a few steps with
// nothing sent, a few of ZeRO-3 in layered order over the scenario's link. Throws UsageError and Error.
Calibration calibrate(const Experiment& experiment, const Backend& backend, Reporter& reporter);

std::string calibration_table(const Calibration& calibration);

// A cluster file (scenarios/clusters) of this machine, every constant with how it was found.
Json cluster_json(const Calibration& calibration, const ModelShape& model, const std::string& name);

// The links of a cluster file replaced by what was measured. Throws UsageError when the file is not one.
Json cluster_with_link(const std::string& file, const LinkMeasurement& measurement, const std::string& how);

}  // namespace lamina
