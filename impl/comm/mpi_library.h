// The MPI library's header, its errors as ours, and its own collectives on the buffers that the rings take: internal to
// the `mpi` transport. What starts something in MPI is for its progress thread alone.
#pragma once

// The C++ bindings of old are gone; without this, Open MPI's header brings them back.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <string>
#include <vector>

#include "impl/comm/communicator.h"

namespace lamina {

std::string mpi_error_text(int code);

// Throws Error with the call's name.
void check_mpi(int code, const char* call);

// A communicator of some ranks of `world`, in this order; all of them call it, and it blocks until they have.
MPI_Comm make_mpi_communicator(MPI_Comm world, const std::vector<int>& members, int tag);

// Starts a collective over `group`. One request, or where the values take more than most_piece_bytes several: an
// all-reduce is cut up; of a reduce-scatter or an all-gather every rank's part becomes reductions to its owner or
// broadcasts from it, each of at most so many bytes.
std::vector<MPI_Request> start_mpi_collective(const CollectiveCall& whole, MPI_Comm group,
                                              std::int64_t most_piece_bytes);

// Once all those requests have ended: MPI leaves the sum of a reduce-scatter that is not cut up at the front of the
// values; it belongs into part `rank` of `ranks`.
void settle_mpi_collective(const CollectiveCall& whole, int rank, int ranks, std::int64_t most_piece_bytes);

}  // namespace lamina
