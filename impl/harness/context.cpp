#include "impl/harness/context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>

#include "impl/base/error.h"
#include "impl/harness/build_info.h"
#include "impl/harness/revision.h"

namespace lamina {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const std::size_t at = line.find(": ");
      return at == std::string::npos ? line : line.substr(at + 2);
    }
  }
  return "unknown";
}

Json environment() {
  constexpr std::array kNames{"OMP_NUM_THREADS",
                              "OMP_PROC_BIND",
                              "OMP_PLACES",
                              "OMP_WAIT_POLICY",
                              "GOMP_CPU_AFFINITY",
                              "GOMP_SPINCOUNT",
                              "OPENBLAS_NUM_THREADS",
                              "OPENBLAS_CORETYPE",
                              "OPENBLAS_MAIN_FREE",
                              "MALLOC_ARENA_MAX",
                              "CUDA_VISIBLE_DEVICES",
                              "CUDA_LAUNCH_BLOCKING",
                              "NCCL_ALGO",
                              "NCCL_PROTO",
                              "NCCL_SOCKET_IFNAME",
                              "UCX_TLS",
                              "OMPI_MCA_btl",
                              "OMPI_MCA_pml",
                              "OMPI_MCA_btl_tcp_links",
                              "OMPI_MCA_btl_tcp_if_include",
                              "OMPI_MCA_btl_tcp_if_exclude"};
  Json found = Json::object();
  for (const char* name : kNames) {
    if (const char* value = std::getenv(name)) {
      found[name] = value;
    }
  }
  return found;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string version_text() {
  const std::string revision = *build::kRevision == '\0' ? "no revision known" : build::kRevision;
  return fmt::format("{} ({}{})", build::kVersion, revision, build::kDirty ? ", with local changes" : "");
}

std::int64_t machine_cores() { return sysconf(_SC_NPROCESSORS_ONLN); }

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  if (cores.empty()) {  // more cores than the set can tell
    for (int core = 0; core < std::max<long>(1, sysconf(_SC_NPROCESSORS_ONLN)); ++core) {
      cores.push_back(core);
    }
  }
  return cores;
}

RankPlace Placement::of(std::int64_t rank) const {
  return over_processes() ? processes.at(static_cast<std::size_t>(rank))
                          : RankPlace{host_name(), usable_cores(), "threads"};
}

ComputeShare compute_share(const Placement& placement, std::int64_t ranks) {
  std::map<std::pair<std::string, int>, std::int64_t> ranks_on;  // a core
  std::map<std::string, std::int64_t> ranks_at;                  // a host
  if (!placement.over_processes()) {
    const RankPlace here = placement.of(0);
    for (const int core : here.cores) {
      ranks_on[{here.host, core}] = ranks;
    }
    ranks_at[here.host] = ranks;
  }
  const std::int64_t processes = placement.over_processes() ? ranks : 0;
  for (std::int64_t rank = 0; rank < processes; ++rank) {
    const RankPlace place = placement.of(rank);
    for (const int core : place.cores) {
      ++ranks_on[{place.host, core}];
    }
    ++ranks_at[place.host];
  }
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t rank = 0; rank < std::max<std::int64_t>(1, processes); ++rank) {
    const RankPlace place = placement.of(rank);
    const double share = std::accumulate(place.cores.begin(), place.cores.end(), 0.0, [&](double sum, int core) {
      return sum + 1.0 / static_cast<double>(ranks_on.at({place.host, core}));
    });
    least = std::min(least, share);
  }
  constexpr double kRounding = 1e-9;
  ComputeShare share;
  share.threads_per_rank = std::max(1, static_cast<int>(least + kRounding));
  share.oversubscribed = least + kRounding < 1;
  share.cores = std::ssize(ranks_on);
  for (const auto& [host, count] : ranks_at) {
    share.most_on_a_host = std::max(share.most_on_a_host, count);
  }
  return share;
}

double physical_memory_bytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

Json describe_context(const Placement& placement, std::int64_t ranks, int threads_per_rank, const BlasInfo& blas) {
  Json context;
  context["build"] = {{"version", build::kVersion},
                      {"revision", text_or_null(build::kRevision)},
                      {"dirty", build::kDirty},
                      {"compiler", build::kCompiler},
                      {"type", build::kType},
                      {"sanitizers", text_or_null(build::kSanitizers)},
                      {"mpi", text_or_null(build::kMpi)},
                      {"cuda", text_or_null(build::kCuda)},
                      {"nccl", text_or_null(build::kNccl)}};
  context["host"] = {{"cpu", cpu_name()}, {"cores", machine_cores()}, {"load", finite_or_null(load_average())}};
  context["blas"] = {{"name", blas.name}, {"core", blas.core}, {"threads_per_rank", threads_per_rank}};
  context["ranks"] = Json::array();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const RankPlace place = placement.of(rank);
    context["ranks"].push_back({{"rank", rank},
                                {"host", place.host},
                                {"cores", place.cores},
                                {"device", nullptr},
                                {"network", place.network}});
  }
  context["environment"] = environment();
  return context;
}

}  // namespace lamina
