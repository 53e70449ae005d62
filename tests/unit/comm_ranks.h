// Ranks as threads of a test.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "impl/comm/threads.h"

namespace lamina {

// Runs `rank_main` on a thread for each rank and returns what each one threw ("" for nothing). A rank that throws ends
// the job of the others.
inline std::vector<std::string> run_ranks(ThreadsFabric& fabric, int ranks,
                                          const std::function<void(Transport&)>& rank_main) {
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Transport& transport = fabric.endpoint(rank);
      try {
        rank_main(transport);
      } catch (const Aborted& aborted) {
        failures[static_cast<std::size_t>(rank)] = fmt::format("aborted: {}", aborted.what());
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(rank)] = error.what();
        transport.abort(fmt::format("rank {}: {}", rank, error.what()));
      }
    });
  }
  threads.clear();  // joins
  return failures;
}

}  // namespace lamina
