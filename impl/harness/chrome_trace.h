// A trace for Perfetto and chrome://tracing (the Trace Event Format, JSON object form).
#pragma once

#include <string>
#include <string_view>

#include "impl/schedule/schedule.h"
#include "impl/schedule/trace.h"

namespace lamina {

// Runs of one scenario in one file, all beginning at time 0 so that they can be compared by eye: a process for each
// rank of each run, a track for each stream that has ops, and an arrow for each message between two ranks: from a
// send to the receive that it meets, and from a collective on one rank to the same one on the next rank of its ring.
class ChromeTrace {
 public:
  void add_run(std::string_view name, const Schedule& schedule, const Trace& trace);
  std::string text() const;  // the file's content

 private:
  std::string events_;
  std::int64_t next_process_ = 0;
  std::int64_t next_flow_ = 0;
};

}  // namespace lamina
