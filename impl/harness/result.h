// The result file: what is in it, and how it is kept whole.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "impl/base/files.h"
#include "impl/base/strict_json.h"
#include "impl/harness/prepare.h"

namespace lamina {

// The link that a run had, and where it came from.
struct ResolvedLink {
  EmulatedLink link;                     // bandwidth 0: not emulated
  std::string source;                    // "given", "preset infiniband-hdr", "calibrated", "none", "network"
  std::optional<double> compute_time_s;  // of a step, where a calibration measured it
};

// A run's entry. Bytes are counted in the first measured step; losses and norms are those of every step, warm-up
// included. What does not apply is null with a reason beside it.
Json plan_as_json(const Plan& plan);
Json link_as_json(const ResolvedLink& link);
Json traffic_as_json(const StepTraffic& traffic);
Json prediction_of_traffic(const PreparedRun& run);  // a list with an entry for each rank, or null
Json prediction_of_memory(const PreparedRun& run);   // the same
Json entry_not_run(const Experiment& experiment, const PreparedRun& run, const std::string& status,
                   const std::string& reason);
Json entry_of_run(const Experiment& experiment, const PreparedRun& run, const ResolvedLink& link,
                  const TrainOutcome& outcome);

// Of an entry's traffic_bytes and peak_memory_bytes: the most of any rank. Control messages are outside the comparison.
double most_bytes_sent(const Json& traffic);
double most_bytes_held(const Json& memory);

// The whole document; runs and expectations are filled in as they come.
Json begin_result(const Experiment& experiment, const std::vector<std::string>& arguments, const BlasInfo& blas);

// Puts the resolved link into the result's scenario (where nothing of the link is swept, there is one).
void record_link(Json& result, const ResolvedLink& link);

// Keeps a result on the disk, whole at every moment. The first save claims the name.
class ResultFile {
 public:
  ResultFile(std::string path, Existing existing) : path_(std::move(path)), existing_(existing) {}
  void save(const Json& result);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Existing existing_;
};

}  // namespace lamina
