// Run under an MPI launcher: ranks reduce in a loop, and the last one does something it should not. Argument: what.
// Nothing but the transport ends the job.
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

void take_turns(Transport& transport, std::string_view fault) {
  std::vector<int> all(static_cast<std::size_t>(transport.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto group = transport.group(all);
  const bool last = transport.rank() == transport.size() - 1;
  if (fault == "disagree") {
    check_same_everywhere(transport, "scenario", last ? "bad" : "good");
  }
  std::vector<float> values(static_cast<std::size_t>(transport.size()) * 1'000'000, 1.0F);
  for (int turn = 0; turn < 10'000; ++turn) {
    if (last && turn == 3 && misbehave(fault)) {
      return;
    }
    if (fault == "none" && turn == 3) {
      return;
    }
    if (fault == "unwind" && last && turn == 3) {  // with messages under way into memory that goes away
      std::vector<float> short_lived(1'000'000);
      const auto receive = group->receive(0, std::as_writable_bytes(std::span(short_lived)));
      throw Error("a wheel came off");
    }
    all_reduce<float>(*group, values, {TrafficKind::data_reduce, UnitKind::layer});
  }
}

int run(std::string_view fault) {
  const auto transport = make_mpi_transport();
  if (fault == "uncaught") {
    if (transport->rank() == transport->size() - 1) {
      throw Error("a wheel came off");
    }
  }
  try {
    transport->set_deadline(std::chrono::seconds(fault == "hang" ? 5 : 600));  // the other faults are seen before it
    take_turns(*transport, fault);
  } catch (const std::exception& error) {
    transport->abort(error.what());
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  try {
    return lamina::run(argc == 2 ? argv[1] : "none");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
