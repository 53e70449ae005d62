// Ranks as threads of one process, with an emulated link between them.
#pragma once

#include <memory>
#include <vector>

#include "impl/comm/communicator.h"

namespace lamina {

// A full-duplex link from every rank into an ideal switch: each rank sends at most, and receives at most, this many
// bits a second over all its groups together, and a message arrives latency_s after its last bit left.
// bandwidth 0: no emulation, messages are copied as fast as memory allows.
struct EmulatedLink {
  double bandwidth_bits_per_s = 0;
  double latency_s = 0;
};

class ThreadsFabric {
 public:
  ThreadsFabric(int ranks, const EmulatedLink& link);
  ~ThreadsFabric();
  ThreadsFabric(const ThreadsFabric&) = delete;
  ThreadsFabric& operator=(const ThreadsFabric&) = delete;
  Transport& endpoint(int rank);     // lives as long as the fabric; used by that rank's threads
  std::string abort_reason() const;  // empty while nothing failed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lamina
