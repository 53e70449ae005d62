// A scenario: what its file says, checked and with every default filled in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "impl/base/real.h"
#include "impl/base/strict_json.h"
#include "impl/engine/train.h"
#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/plan/cluster.h"
#include "impl/plan/plan.h"

namespace lamina {

// The emulated link as asked for. With a share, the bandwidth is found by a calibration before the runs.
struct LinkRequest {
  EmulatedLink link;                                  // bandwidth 0: not emulated, or not yet known
  std::optional<double> all_reduce_share_of_compute;  // of a step's compute time
  std::string preset;                                 // empty: none
};

struct RunRequest {
  std::string name;
  PlanRequest plan;
};

// One point of the sweep (the only one where nothing is swept): all that its runs have in common, and the runs.
struct Setting {
  std::vector<std::pair<std::string, Json>> swept;  // key and value; empty where nothing is swept
  ModelShape model;
  DataConfig data;
  Batch batch;
  OptimizerConfig optimizer;
  Precision precision;
  std::int64_t warmup_steps = 0;
  std::int64_t measured_steps = 1;
  std::int64_t seed = 1;
  std::optional<Cluster> cluster;  // of what is simulated or searched
  Json search;                     // the key of that name, where plans are searched
  std::string transport;           // "simulated" with a cluster
  CollectiveBackend collectives = CollectiveBackend::ring;
  LinkRequest link;
  std::string initial_weights;
  std::optional<DumpConfig> dump;  // with "{run}" still in the names
  std::vector<Disturbance> disturbances;
  std::vector<RunRequest> runs;
};

struct Expectation {
  std::string metric;
  std::string of;                  // a run, or one point of it ("layered, seed=2")
  std::string over;                // of ratios; empty for series, and for a metric that is a ratio itself
  std::optional<double> at_least;  // the ratio
  std::optional<double> at_most;
  std::string equal_to;  // of series; empty for ratios
  double within = 0;     // largest relative difference over the steps
};

enum class Executor : std::uint8_t { train, simulate, search };

struct Scenario {
  std::string file;
  Executor executor = Executor::train;
  std::string name;
  std::string purpose;
  Json document;                  // of the first setting: valid, defaults filled in
  std::vector<Setting> settings;  // one for each combination of swept values
  std::vector<Expectation> expectations;
};

// A key and the JSON value that replaces the file's: "transport.link.bandwidth_bits_per_s", 1e9. Elements of a list
// are named by index or name, "runs[0].groups" or "runs[layered].groups", all of them by "runs[].groups". null takes
// a key out. Setting one of several alternatives (`data`, `transport.link`) takes out the others.
struct Override {
  std::string place;
  Json value;
};

// "place=value"; a value that is not JSON is a text. Throws UsageError.
Override parse_override(const std::string& text);

// Throws UsageError with one line naming file and key. Paths in the result are relative to the working directory.
Scenario read_scenario(const std::string& file, const std::vector<Override>& overrides);

// "layered", or "layered, seed=2" where the setting is one of several.
std::string full_name(const RunRequest& run, const Setting& setting);

// The dump of one run, its name put in place of "{run}".
std::optional<DumpConfig> dump_of(const Setting& setting, const std::string& run_name);

// Of the scenario's meaning: the same for two files that differ in layout, order of keys or written-out defaults.
std::string canonical_text(const Scenario& scenario);

}  // namespace lamina
