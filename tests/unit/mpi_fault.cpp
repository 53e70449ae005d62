// Run under an MPI launcher: ranks reduce in a loop, by rings or by the library, and the last one does something it
// should not. Arguments: ring or library, and what. Nothing but the transport ends the job.
#include <signal.h>
#include <unistd.h>

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
bool stops_making = false;  // this rank, once the others are making a communicator
}

// MPI's own way of being looked at: this stands before the library's, which has a second name.
extern "C" int MPI_Comm_create_group(MPI_Comm world, MPI_Group group, int tag, MPI_Comm* made) {
  if (stops_making) {
    ::kill(::getpid(), SIGSTOP);
  }
  return PMPI_Comm_create_group(world, group, tag, made);
}

namespace lamina {
namespace {

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

void take_turns(Transport& transport, Collectives collectives, std::string_view fault) {
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
    if ((fault == "none" || fault == "late") && turn == 3) {
      return;
    }
    if (fault == "unwind" && last && turn == 3) {  // with messages under way into memory that goes away
      std::vector<float> short_lived(1'000'000);
      const auto bytes = std::as_writable_bytes(std::span(short_lived));
      const auto under_way = collectives == Collectives::ring
                                 ? group->receive(0, bytes)
                                 : group->collective({.type = RealType::fp32, .values = bytes}, 0, {});
      throw Error("a wheel came off");
    }
    all_reduce<float>(*group, values, {TrafficKind::data_reduce, UnitKind::layer});
  }
}

int run(Collectives collectives, std::string_view fault) {
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
  using lamina::Collectives;
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpi_fault ring|library FAULT\n");
    return 2;
  }
  try {
    return lamina::run(argv[1] == name_of(Collectives::library) ? Collectives::library : Collectives::ring, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
