#include "impl/comm/launcher.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "impl/base/error.h"

namespace lamina {

std::optional<LaunchedRanks> launched_ranks(const std::function<const char*(const char* variable)>& environment) {
  constexpr std::array kSizeVariables{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE",
                                      "SLURM_STEP_NUM_TASKS"};
  for (const char* variable : kSizeVariables) {
    const char* text = environment(variable);
    int ranks = 0;
    if (text != nullptr && std::from_chars(text, text + std::strlen(text), ranks).ec == std::errc{} && ranks > 1) {
      return LaunchedRanks{variable, ranks};
    }
  }
  return std::nullopt;
}

std::optional<LaunchedRanks> launched_ranks() {
  return launched_ranks([](const char* variable) { return std::getenv(variable); });
}

void check_library_fits_launcher(int library_ranks, const std::optional<LaunchedRanks>& launched) {
  if (library_ranks == 1 && launched) {
    throw Error(fmt::format(
        "the launcher started {} processes ({}), but the MPI library of this program sees only one: start it with the "
        "launcher of the MPI it was built with",
        launched->ranks, launched->variable));
  }
}

}  // namespace lamina
