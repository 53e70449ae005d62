// What the environment says about who started this process.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lamina {

// How many processes a launcher started together, and the variable that says so.
struct LaunchedRanks {
  std::string variable;
  int ranks = 1;
};

// Knows Open MPI, MPICH and its relatives (PMI), MVAPICH, and Slurm's srun. Nothing when none of them started us, or
// when one started a single process.
std::optional<LaunchedRanks> launched_ranks(const std::function<const char*(const char* variable)>& environment);
std::optional<LaunchedRanks> launched_ranks();  // this process's environment

// Throws Error, in one line, when several processes were launched but the library sees itself alone: each of them
// would believe to be rank 0 of 1.
void check_library_fits_launcher(int library_ranks, const std::optional<LaunchedRanks>& launched);

}  // namespace lamina
