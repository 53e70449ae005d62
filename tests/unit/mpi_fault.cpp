// Run under an MPI launcher: ranks reduce in a loop, by rings or by the library, and the last one does something it
// should not, or something that must not end the job. Arguments: ring or library, and what. Nothing but the transport
// ends the job.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <thread>

#include "impl/comm/agreement.h"
#include "impl/comm/collectives.h"
#include "impl/comm/mpi.h"
#include "impl/comm/mpi_library.h"

namespace {
bool stops_making = false;        // this rank, once the others are making a communicator
std::atomic<bool> mute = false;   // what this rank sends as signs of life stays behind
std::atomic<bool> blind = false;  // this rank sees nothing end
}  // namespace

// MPI's own way of being looked at: these stand before the library's, which have a second name.
extern "C" int MPI_Isend(const void* bytes, int count, MPI_Datatype type, int to, int tag, MPI_Comm group,
                         MPI_Request* request) {
  if (mute && type == MPI_CHAR && count == 1) {
    *request = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
  }
  return PMPI_Isend(bytes, count, type, to, tag, group, request);
}

extern "C" int MPI_Testsome(int count, MPI_Request* requests, int* ended, int* indices, MPI_Status* statuses) {
  const int code = blind ? MPI_SUCCESS : PMPI_Testsome(count, requests, ended, indices, statuses);
  *ended = blind ? 0 : *ended;
  return code;
}

extern "C" int MPI_Comm_create_group(MPI_Comm world, MPI_Group group, int tag, MPI_Comm* made) {
  if (stops_making) {
    ::kill(::getpid(), SIGSTOP);
  }
  return PMPI_Comm_create_group(world, group, tag, made);
}

namespace lamina {
namespace {

constexpr std::array kFaults{"throw", "unwind", "uncaught", "exit",     "quick-exit", "kill",
                             "stop",  "hang",   "leave",    "disagree", "stop-making"};
constexpr std::array kNone{"none", "late", "mute", "blind"};  // nothing that ends a job
constexpr TrafficTag kTag{TrafficKind::data_reduce, UnitKind::layer};

template <class Names>
bool is_one_of(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The last rank's signs of life stay behind while rank 0 expects 80 MB of it, for longer than it may be silent else.
void stay_mute(Communicator& group) {
  std::vector<std::byte> much(80'000'000);
  const int last = group.size() - 1;
  if (group.rank() == 0) {
    group.receive(last, much)->wait();
  } else if (group.rank() == last) {
    mute = true;
    std::this_thread::sleep_for(std::chrono::seconds(9));
    mute = false;
    group.send(0, much, kTag)->wait();
  }
}

// The last rank sees the end of a collective long after the others have left.
void stay_blind(Communicator& group, std::span<float> values) {
  std::jthread eyes;
  if (group.rank() == group.size() - 1) {
    eyes = std::jthread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3500));
      blind = false;
    });
    blind = true;
  }
  all_reduce<float>(group, values, kTag);
}

// What the last rank does in turn 3; true when it stops taking part.
bool misbehave(std::string_view fault) {
  if (fault == "throw") {
    throw Error("a wheel came off");
  } else if (fault == "exit") {
    std::exit(0);
  } else if (fault == "quick-exit") {
    std::_Exit(0);
  } else if (fault == "kill") {
    ::kill(::getpid(), SIGKILL);
  } else if (fault == "stop") {
    ::kill(::getpid(), SIGSTOP);
  } else if (fault == "hang") {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  return fault == "leave";
}

void take_turns(Transport& transport, CollectiveBackend collectives, std::string_view fault) {
  std::vector<int> all(static_cast<std::size_t>(transport.size()));
  std::iota(all.begin(), all.end(), 0);
  const bool last = transport.rank() == transport.size() - 1;
  stops_making = last && fault == "stop-making";
  if (last && fault == "late") {  // longer than a rank may give no sign of life
    std::this_thread::sleep_for(std::chrono::seconds(8));
  }
  const auto group = transport.group(all, collectives);
  if (fault == "disagree") {
    check_same_everywhere(transport, "scenario", last ? "bad" : "good");
  }
  std::vector<float> values(static_cast<std::size_t>(transport.size()) * 1'000'000, 1.0F);
  for (int turn = 0; turn < 10'000; ++turn) {
    if (last && turn == 3 && misbehave(fault)) {
      return;
    }
    if (is_one_of(kNone, fault) && turn == 3) {
      if (fault == "mute") {
        stay_mute(*group);
      } else if (fault == "blind") {
        stay_blind(*group, values);
      }
      return;
    }
    if (fault == "unwind" && last && turn == 3) {  // with messages under way into memory that goes away
      std::vector<float> short_lived(1'000'000);
      const auto bytes = std::as_writable_bytes(std::span(short_lived));
      const auto under_way = collectives == CollectiveBackend::ring
                                 ? group->receive(0, bytes)
                                 : group->collective({.type = RealType::fp32, .values = bytes}, 0, {});
      throw Error("a wheel came off");
    }
    all_reduce<float>(*group, values, kTag);
  }
}

int run(CollectiveBackend collectives, std::string_view fault) {
  const auto transport = make_mpi_transport();
  if (fault == "uncaught") {
    if (transport->rank() == transport->size() - 1) {
      throw Error("a wheel came off");
    }
  }
  try {
    transport->set_deadline(std::chrono::seconds(fault == "hang" ? 5 : 600));  // the other faults are seen before it
    take_turns(*transport, collectives, fault);
  } catch (const std::exception& error) {
    transport->abort(error.what());
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  using lamina::CollectiveBackend;
  const std::string_view collectives = argc == 3 ? argv[1] : "";
  const std::string_view fault = argc == 3 ? argv[2] : "";
  const CollectiveBackend backend = collectives == "library" ? CollectiveBackend::library : CollectiveBackend::ring;
  if (collectives != name_of(backend) ||
      (!lamina::is_one_of(lamina::kFaults, fault) && !lamina::is_one_of(lamina::kNone, fault))) {
    std::fprintf(stderr, "usage: mpi_fault ring|library FAULT, one that this program knows\n");
    return 2;
  }
  try {
    return lamina::run(backend, fault);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
