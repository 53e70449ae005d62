// `lamina link`: what can be sent between ranks, threads of this process or processes under an MPI launcher.
#pragma once

#include <cstdio>
#include <string>

#include "impl/harness/backend.h"
#include "impl/harness/link_measure.h"

namespace lamina {

struct LinkCommandOptions {
  int ranks = 0;       // threads (0: two); over processes the launcher's number, or 0
  EmulatedLink link;   // between threads
  std::string preset;  // the same by name
  LinkMeasureOptions measure;
  std::string json;     // file of the measurement; empty: not written
  std::string cluster;  // cluster file whose network link becomes what is measured; empty: none
  bool force = false;   // change the cluster file, replace the JSON file
};

// Measures, prints the table and writes what was asked for. Where a launcher started this process together with others,
// all of them are the ranks, over MPI: rank 0 alone prints and writes, and the table and the JSON name what messages
// travelled by. Exit code 3 when a message brought wrong values. Throws UsageError.
int link_command(LinkCommandOptions options, const Backend& backend, std::FILE* output, std::FILE* errors);

}  // namespace lamina
