#include "impl/comm/mpi_library.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace lamina {
namespace {

// A run of elements of one rank's part (of the whole, where it is all reduced).
struct Piece {
  int owner = 0;
  std::byte* begin = nullptr;
  int elements = 0;
};

MPI_Datatype mpi_type(RealType type) {
  switch (type) {
    case RealType::fp64:
      return MPI_DOUBLE;
    case RealType::fp32:
      return MPI_FLOAT;
    case RealType::bf16:
    case RealType::fp16:
      return MPI_UINT16_T;  // to be gathered: MPI has no sums of them
  }
  return MPI_DATATYPE_NULL;
}

// By one call of MPI's that knows of parts.
bool at_once(const CollectiveCall& whole, std::int64_t most_piece_bytes) {
  return whole.kind != CollectiveCall::Kind::all_reduce && std::ssize(whole.values) <= most_piece_bytes;
}

std::vector<Piece> pieces_of(const CollectiveCall& whole, int ranks, std::int64_t most_piece_bytes) {
  const std::int64_t element_bytes = bytes_of(whole.type);
  const int parts = whole.kind == CollectiveCall::Kind::all_reduce ? 1 : ranks;
  const std::int64_t part_bytes = std::ssize(whole.values) / parts;
  const std::int64_t most_bytes = std::max<std::int64_t>(1, most_piece_bytes / element_bytes) * element_bytes;
  std::vector<Piece> pieces;
  for (int owner = 0; owner < parts; ++owner) {
    for (std::int64_t begin = 0; begin < part_bytes; begin += most_bytes) {
      pieces.push_back({owner, whole.values.data() + owner * part_bytes + begin,
                        static_cast<int>(std::min(most_bytes, part_bytes - begin) / element_bytes)});
    }
  }
  return pieces;
}

MPI_Request start_whole(const CollectiveCall& whole, MPI_Comm group, int ranks) {
  const MPI_Datatype type = mpi_type(whole.type);
  const int elements = static_cast<int>(std::ssize(whole.values) / bytes_of(whole.type) / ranks);  // of a part
  std::byte* const values = whole.values.data();
  MPI_Request request = MPI_REQUEST_NULL;
  if (whole.kind == CollectiveCall::Kind::reduce_scatter) {
    check_mpi(MPI_Ireduce_scatter_block(MPI_IN_PLACE, values, elements, type, MPI_SUM, group, &request),
              "MPI_Ireduce_scatter_block");
  } else {
    check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values, elements, type, group, &request),
              "MPI_Iallgather");
  }
  return request;
}

MPI_Request start_piece(const CollectiveCall& whole, const Piece& piece, MPI_Comm group, int rank) {
  const MPI_Datatype type = mpi_type(whole.type);
  MPI_Request request = MPI_REQUEST_NULL;
  switch (whole.kind) {
    case CollectiveCall::Kind::all_reduce:
      check_mpi(MPI_Iallreduce(MPI_IN_PLACE, piece.begin, piece.elements, type, MPI_SUM, group, &request),
                "MPI_Iallreduce");
      break;
    case CollectiveCall::Kind::reduce_scatter: {
      const void* const from = rank == piece.owner ? MPI_IN_PLACE : piece.begin;
      check_mpi(MPI_Ireduce(from, piece.begin, piece.elements, type, MPI_SUM, piece.owner, group, &request),
                "MPI_Ireduce");
      break;
    }
    case CollectiveCall::Kind::all_gather:
      check_mpi(MPI_Ibcast(piece.begin, piece.elements, type, piece.owner, group, &request), "MPI_Ibcast");
      break;
  }
  return request;
}

}  // namespace

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    throw Error(fmt::format("{} failed: {}", call, mpi_error_text(code)));
  }
}

MPI_Comm make_mpi_communicator(MPI_Comm world, const std::vector<int>& members, int tag) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_group(world, &all);
  MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some);
  const int code = MPI_Comm_create_group(world, some, tag, &made);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check_mpi(code, "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  return made;
}

std::vector<MPI_Request> start_mpi_collective(const CollectiveCall& whole, MPI_Comm group,
                                              std::int64_t most_piece_bytes) {
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(group, &rank);
  MPI_Comm_size(group, &ranks);
  if (at_once(whole, most_piece_bytes)) {
    return {start_whole(whole, group, ranks)};
  }
  std::vector<MPI_Request> requests;
  for (const Piece& piece : pieces_of(whole, ranks, most_piece_bytes)) {
    requests.push_back(start_piece(whole, piece, group, rank));
  }
  return requests;
}

void settle_mpi_collective(const CollectiveCall& whole, int rank, int ranks, std::int64_t most_piece_bytes) {
  if (whole.kind != CollectiveCall::Kind::reduce_scatter || !at_once(whole, most_piece_bytes)) {
    return;
  }
  const std::size_t part_bytes = whole.values.size() / static_cast<std::size_t>(ranks);
  std::memmove(whole.values.data() + part_bytes * static_cast<std::size_t>(rank), whole.values.data(), part_bytes);
}

}  // namespace lamina
