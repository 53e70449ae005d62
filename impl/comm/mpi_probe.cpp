#include "impl/comm/mpi_probe.h"

#include <algorithm>
#include <array>

#include "impl/comm/mpi_library.h"

namespace lamina {
namespace {

// Open MPI closes the modules that it does not use, and their variables with them. So the variables that are left tell
// what is used: every point-to-point layer has a priority, every byte-transfer module an exclusivity.
std::vector<std::string> names_between(const std::vector<std::string>& variables, std::string_view prefix,
                                       std::string_view suffix) {
  std::vector<std::string> names;
  for (const std::string_view variable : variables) {
    if (variable.size() > prefix.size() + suffix.size() && variable.starts_with(prefix) && variable.ends_with(suffix)) {
      names.emplace_back(variable.substr(prefix.size(), variable.size() - prefix.size() - suffix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> library_variables() {
  int provided = 0;
  check_mpi(MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided), "MPI_T_init_thread");
  int count = 0;
  check_mpi(MPI_T_cvar_get_num(&count), "MPI_T_cvar_get_num");
  std::vector<std::string> variables;
  for (int i = 0; i < count; ++i) {
    std::array<char, 256> name{};
    int length = static_cast<int>(name.size());
    int verbosity = 0;
    int binding = 0;
    int scope = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    if (MPI_T_cvar_get_info(i, name.data(), &length, &verbosity, &type, nullptr, nullptr, nullptr, &binding, &scope) ==
        MPI_SUCCESS) {
      variables.emplace_back(name.data());
    }
  }
  MPI_T_finalize();
  return variables;
}

}  // namespace

MpiNetwork ask_for_network() {
  MpiNetwork network;
  const std::vector<std::string> variables = library_variables();
  const std::vector<std::string> layers = names_between(variables, "pml_", "_priority");
  network.layer = layers.empty() ? "unknown" : fmt::format("{}", fmt::join(layers, "+"));
  if (network.layer == "ob1") {
    network.modules = names_between(variables, "btl_", "_exclusivity");
    std::erase(network.modules, "self");
  } else if (network.layer == "cm") {
    network.modules = names_between(variables, "mtl_", "_priority");
  }
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  MPI_Comm_size(host, &network.ranks_on_this_host);
  MPI_Comm_free(&host);
  return network;
}

}  // namespace lamina
