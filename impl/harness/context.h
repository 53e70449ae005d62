// Where and with what a result was made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "impl/base/strict_json.h"
#include "impl/model/transformer.h"

namespace lamina {

std::string version_text();  // "0.1.0 (1a2b3c4d5e6f, with local changes)"

std::vector<int> usable_cores();  // that this process may run on
std::int64_t machine_cores();     // that this machine has, and its load is of

std::string host_name();

// Where a rank runs, and what its messages travel by.
struct RankPlace {
  std::string host;
  std::vector<int> cores;  // that its process may run on
  std::string network;     // "threads", "mpi: ob1 (tcp)"
};

// Where all ranks are. No processes: as many ranks as are wanted are threads of this one.
struct Placement {
  std::vector<RankPlace> processes;
  bool over_processes() const { return !processes.empty(); }
  bool has(std::int64_t ranks) const { return !over_processes() || ranks <= std::ssize(processes); }
  RankPlace of(std::int64_t rank) const;
};

// What the first `ranks` ranks have to compute with. A core is shared out among the ranks that may run on it; a rank
// computes with as many threads as its shares make up, at least one, and all ranks with as many as the least of them.
struct ComputeShare {
  int threads_per_rank = 1;
  std::int64_t cores = 1;           // different ones, of all hosts
  std::int64_t most_on_a_host = 1;  // ranks
  bool oversubscribed = false;      // some core has more than one compute thread
};
ComputeShare compute_share(const Placement& placement, std::int64_t ranks);

double physical_memory_bytes();  // of this machine

double load_average();  // of the last minute

std::string utc_now();  // "2026-01-01T00:00:00Z"

// The result's `context`: build, host, BLAS, ranks, and those environment variables that change how a program of this
// kind runs (a list of names; the rest of the environment is nobody's business).
Json describe_context(const Placement& placement, std::int64_t ranks, int threads_per_rank, const BlasInfo& blas);

}  // namespace lamina
