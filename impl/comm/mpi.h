// Ranks as processes under an MPI launcher.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "impl/comm/communicator.h"

namespace lamina {

struct MpiOptions {
  std::int64_t most_piece_bytes = std::int64_t{1} << 30;  // MPI counts in int: longer messages travel in pieces
  bool rendezvous = false;       // no send ends before its receive is posted, however small (else MPI may buffer it)
  double look_every_s = 200e-6;  // how long the progress thread sleeps while messages are under way
  double heartbeat_every_s = 1;
  double start_within_s = 60;  // from when MPI is initialised to when all ranks have exchanged messages, or the end
  double silent_after_s = 6;   // without a sign of life for this long, a rank is taken to be stopped and the job ends
  // A link is at least as fast as this. Signs of life travel behind the data that is under way: a rank may be silent,
  // and after it has left its part of a collective may go on, for as long more as that takes.
  double slowest_bytes_per_s = 10e6;
};

// What messages really travel by, as far as the library tells.
struct MpiNetwork {
  // The point-to-point layer that was chosen: "ob1" (which uses the modules below), "ucx", "cm" (a matching network).
  std::string layer;
  // ob1: the modules that were opened ("vader": shared memory, taken between ranks of one host; "tcp"; "openib" …).
  // cm: the matching transport layers. Otherwise empty.
  std::vector<std::string> modules;
  int ranks_on_this_host = 1;
  std::string text() const;  // "ob1 (vader, tcp)"
};

class MpiTransport : public Transport {
 public:
  virtual const MpiNetwork& network() const = 0;
  // What to do, beside ending the job, as soon as this rank knows that it fails: called once, from any thread, with the
  // first cause that the rank knows; it must not call the transport. Rank 0 is told of the other ranks' aborts, but for
  // those of ranks that gave up a message before (after a deadline, say). An empty function: nothing any more.
  virtual void on_failure(std::function<void(const std::string& reason)> react) = 0;
};

// Starts MPI in this process; destroying the transport ends it, so there is one such object in a process's life. All
// MPI calls are made by one progress thread, which sleeps between looks and leaves the processor to the compute.
//
// abort() prints its reason as the first line on stderr, makes this rank's calls throw Aborted, and after a short
// grace (in which the rank may write down that it failed) ends all processes by MPI_Abort with exit code 3. The
// launcher ends the other ranks by SIGTERM. So does a rank that sees another one silent (stopped, or its machine gone).
// A rank that destroys its transport waits for all others to do so too; who still waits for a message of a rank that
// has left gets an Error. A request destroyed before wait() has returned ends all further communication of its rank:
// the next thing that such a rank can do is abort().
//
// Throws Error when the launcher started several processes but this MPI library sees one (another MPI's launcher).
std::unique_ptr<MpiTransport> make_mpi_transport(const MpiOptions& options = {});

// "Open MPI v4.1.4 …", from the library that is loaded.
std::string mpi_library_version();

}  // namespace lamina
