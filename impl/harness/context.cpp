#include "impl/harness/context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "impl/base/error.h"
#include "impl/harness/build_info.h"
#include "impl/harness/revision.h"

namespace lamina {
namespace {

// Empty stands for "without": null in a result.
Json text_or_null(const char* text) { return *text == '\0' ? Json(nullptr) : Json(text); }

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

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
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
                              "OMPI_MCA_btl_tcp_links"};
  Json found = Json::object();
  for (const char* name : kNames) {
    if (const char* value = std::getenv(name)) {
      found[name] = value;
    }
  }
  return found;
}

}  // namespace

std::string version_text() {
  const std::string revision = *build::kRevision == '\0' ? "no revision known" : build::kRevision;
  return fmt::format("{} ({}{})", build::kVersion, revision, build::kDirty ? ", with local changes" : "");
}

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

int threads_per_rank(std::int64_t ranks) {
  const auto cores = static_cast<std::int64_t>(usable_cores().size());
  return static_cast<int>(std::max<std::int64_t>(1, cores / ranks));
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

Json describe_context(std::int64_t ranks, const std::string& network, const BlasInfo& blas) {
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
  const std::vector<int> cores = usable_cores();
  context["host"] = {{"cpu", cpu_name()}, {"cores", cores.size()}, {"load", finite_or_null(load_average())}};
  context["blas"] = {{"name", blas.name}, {"core", blas.core}, {"threads_per_rank", threads_per_rank(ranks)}};
  const std::string host = host_name();
  context["ranks"] = Json::array();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    context["ranks"].push_back(
        {{"rank", rank}, {"host", host}, {"cores", cores}, {"device", nullptr}, {"network", network}});
  }
  context["environment"] = environment();
  return context;
}

}  // namespace lamina
