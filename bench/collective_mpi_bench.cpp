// Collectives between processes, under an MPI launcher: `collective_mpi_bench ring` measures the ring collectives over
// the `mpi` transport, `… library` MPI's own over the same transport (its option), `… bare` MPI's own MPI_I* calls
// followed by MPI_Wait. One mode a start: the transport owns MPI in its process. Every rank runs the same number of
// iterations; rank 0 reports. Argument: bytes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <functional>
#include <iostream>
#include <vector>

#include "impl/comm/collectives.h"
#include "impl/comm/mpi.h"
#include "impl/comm/mpi_library.h"

namespace {

using namespace lamina;

// What a rank is after set-up: its number, how many there are, and each collective by name.
struct Side {
  int rank = 0;
  int size = 1;
  std::function<void(std::span<float>)> all_reduce, reduce_scatter, all_gather;
};

void wait_for(MPI_Request request) { MPI_Wait(&request, MPI_STATUS_IGNORE); }

Side bare_side() {
  Side side;
  MPI_Comm_rank(MPI_COMM_WORLD, &side.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &side.size);
  const int size = side.size;
  side.all_reduce = [](std::span<float> values) {
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                   &request);
    wait_for(request);
  };
  side.reduce_scatter = [size](std::span<float> values) {
    MPI_Request request;
    MPI_Ireduce_scatter_block(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()) / size, MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD, &request);
    wait_for(request);
  };
  side.all_gather = [size](std::span<float> values) {
    const int part = static_cast<int>(values.size()) / size;
    MPI_Request request;
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), part, MPI_FLOAT, MPI_COMM_WORLD, &request);
    wait_for(request);
  };
  return side;
}

Side transport_side(Communicator& group) {
  return {.rank = group.rank(),
          .size = group.size(),
          .all_reduce = [&group](std::span<float> values) { all_reduce(group, values, {}); },
          .reduce_scatter = [&group](std::span<float> values) { reduce_scatter(group, values, {}); },
          .all_gather = [&group](std::span<float> values) { all_gather(group, values, {}); }};
}

void add(const std::string& name, const std::function<void(std::span<float>)>& call, int ranks) {
  for (const std::int64_t bytes : {std::int64_t{4} << 10, std::int64_t{1} << 20, std::int64_t{16} << 20}) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}/{}", name, ranks, bytes).c_str(),
                                 [=](benchmark::State& state) {
                                   std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float), 0.0F);
                                   call(values);  // once to meet, and to touch the memory
                                   for (auto _ : state) {
                                     call(values);
                                   }
                                   state.SetBytesProcessed(state.iterations() * bytes);
                                 })
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime()
        ->Iterations(bytes < (std::int64_t{1} << 20) ? 200 : 20)
        ->Repetitions(3);
  }
}

class NoReport : public benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void measure(const Side& side, const std::string& mode) {
  add(mode + "_all_reduce", side.all_reduce, side.size);
  add(mode + "_reduce_scatter", side.reduce_scatter, side.size);
  add(mode + "_all_gather", side.all_gather, side.size);
  if (side.rank == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    NoReport none;
    benchmark::RunSpecifiedBenchmarks(&none);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string mode = argc == 2 ? argv[1] : "";
  const CollectiveBackend collectives = mode == "library" ? CollectiveBackend::library : CollectiveBackend::ring;
  if (mode == name_of(collectives)) {
    const auto transport = make_mpi_transport();
    std::vector<int> members;
    for (int rank = 0; rank < transport->size(); ++rank) {
      members.push_back(rank);
    }
    const auto group = transport->group(members, collectives);
    measure(transport_side(*group), "mpi_" + mode);
  } else if (mode == "bare") {
    MPI_Init(&argc, &argv);
    measure(bare_side(), "mpi_bare");
    MPI_Finalize();
  } else {
    std::cerr << "usage: mpirun -n RANKS collective_mpi_bench [--benchmark_…] ring|library|bare\n";
    return 2;
  }
}
