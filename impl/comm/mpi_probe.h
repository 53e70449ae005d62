// Asks the MPI library what messages travel by. Internal to the `mpi` transport.
#pragma once

#include "impl/comm/mpi.h"

namespace lamina {

// Called once by all ranks, by the one thread that calls MPI, after MPI is initialised.
MpiNetwork ask_for_network();

}  // namespace lamina
