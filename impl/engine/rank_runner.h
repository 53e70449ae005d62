// One rank of a training run: its streams, its groups, its steps.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "impl/comm/communicator.h"
#include "impl/engine/rank_outcome.h"
#include "impl/engine/train.h"

namespace lamina {

// Everything a rank needs that is the same for all ranks; outlives the runners.
struct RunInputs {
  const TrainRequest* request = nullptr;
  const TokenSource* source = nullptr;
  const std::map<std::string, NamedTensor>* tensors = nullptr;  // nullptr: initialised from the seed
};

class RankRunner {
 public:
  virtual ~RankRunner() = default;
  // Begins with the other ranks, runs all steps and calls `finished` after each. On a failure the transport is aborted
  // with the first cause, and Error (or Aborted, where another rank failed first) is thrown.
  virtual void run(const std::function<void(std::int64_t step, const RankStep&)>& finished) = 0;
  virtual RankMemory memory() const = 0;
  virtual Trace take_trace() = 0;
  virtual std::vector<Unit> units() const = 0;        // that this rank updates
  virtual CollectiveBackend collectives() const = 0;  // of its data-parallel group
};

// An exception's words, for the result and the first line on stderr.
std::string cause_of(const std::exception& error);

// The same with the rank in front, where the words do not say already who failed: an allocation, a thread.
std::string cause_of(const std::exception& error, int rank);

// Allocates everything the steps need and makes the groups; called by every rank of the transport at once.
std::unique_ptr<RankRunner> make_rank_runner(const RunInputs& inputs, Transport& transport);

}  // namespace lamina
