// Apart from mpi.cpp: the harness describes networks in builds without MPI too.
#include <fmt/format.h>

#include "impl/comm/mpi.h"

namespace lamina {

std::string MpiNetwork::text() const {
  return modules.empty() ? layer : fmt::format("{} ({})", layer, fmt::join(modules, ", "));
}

}  // namespace lamina
