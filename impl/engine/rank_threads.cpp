#include "impl/engine/rank_threads.h"

#include <thread>
#include <vector>

#include "impl/base/error.h"

namespace lamina {

void run_on_threads(int ranks, ThreadsFabric& fabric, const std::function<void(int rank)>& run) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back(run, rank);
    } catch (const std::exception& error) {  // no room for a stack, or too many threads
      fabric.endpoint(rank).abort(fmt::format("rank {} cannot be started: {}", rank, error.what()));
      break;
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace lamina
