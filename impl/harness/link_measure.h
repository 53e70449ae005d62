// Measures latency and bandwidth between the ranks of a transport, in the columns that users of nccl-tests know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "impl/base/strict_json.h"
#include "impl/comm/communicator.h"
#include "impl/comm/threads.h"

namespace lamina {

struct LinkMeasureOptions {
  std::int64_t least_bytes = 8;
  std::int64_t most_bytes = std::int64_t{256} << 20;
  double seconds_a_size = 0.2;  // repeated for about that long, at least kLeastRepetitions times
  CollectiveBackend collectives = CollectiveBackend::ring;
};

// Throws UsageError when the sizes are out of order.
void check_sizes(const LinkMeasureOptions& options);

// One operation at one size.
struct LinkSample {
  std::string operation;   // "send", "all_reduce", "all_gather", "reduce_scatter"
  int peer = -1;           // of rank 0, for send; -1 for collectives
  std::int64_t bytes = 0;  // of the message; of the whole buffer of a collective
  std::int64_t repetitions = 0;
  double time_s = 0;  // one way for send; median over repetitions, of the slowest rank
  bool correct = true;
  // algbw = bytes/time. busbw is what a link carried: times 1 for send, (n − 1)/n for gather and reduce-scatter,
  // 2(n − 1)/n for all-reduce (nccl-tests, doc/PERFORMANCE.md).
  double algorithm_bytes_per_s = 0;
  double bus_bytes_per_s = 0;
};

// A straight line through the point-to-point times: time = latency + bytes/bandwidth. The latency is the smallest
// message's time less what the bandwidth accounts for, the bandwidth that of the two largest sizes' difference.
struct LinkEstimate {
  double latency_s = 0;
  double bandwidth_bits_per_s = 0;
};

struct LinkMeasurement {
  int ranks = 1;
  CollectiveBackend collectives = CollectiveBackend::ring;  // that were measured
  std::vector<LinkSample> samples;                          // empty at one rank
  std::optional<LinkEstimate> estimate;  // of rank 0 and the rank that is slowest to reach; nothing at one rank
};

// Called by all ranks of the transport at once; every rank gets the same result. Sizes double from the least to the
// most bytes (collectives round up to a multiple of the ranks). Throws UsageError as check_sizes().
LinkMeasurement measure_link(Transport& transport, const LinkMeasureOptions& options);

// The same between ranks that are threads of this process.
LinkMeasurement measure_threads(int ranks, const EmulatedLink& link, const LinkMeasureOptions& options);

// Sizes in bytes, times in µs, bandwidths in GB/s (10^9 bytes). Header lines start with '#'.
std::string link_table(const LinkMeasurement& measurement);
Json link_json(const LinkMeasurement& measurement);

}  // namespace lamina
