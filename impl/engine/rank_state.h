// One rank's memory and what its ops do to it: shared by the engine and by the interpreter on real numbers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/model/transformer.h"
#include "impl/model/weights.h"
#include "impl/schedule/schedule.h"

namespace lamina {

// Bytes a rank holds by kind; all of it is allocated before the first step.
struct RankMemory {
  std::int64_t parameters = 0;   // resident whole parameters, or shards
  std::int64_t gradients = 0;    // whole gradients, or shards
  std::int64_t optimizer = 0;    // the optimizer's moments
  std::int64_t checkpoints = 0;  // activations at unit boundaries
  std::int64_t working_set = 0;  // saved for backward, activation gradients, head, scratch
  std::int64_t gathered = 0;     // buffers of gathered parameters and of gradients before their reduction
  std::int64_t transport = 0;    // workspaces of the communicators
  std::int64_t total() const {
    return parameters + gradients + optimizer + checkpoints + working_set + gathered + transport;
  }
};

// Elements [begin, end) of a unit's flat buffer.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t size() const { return static_cast<std::size_t>(end - begin); }
};

// Zeroed memory on a cache line's boundary.
template <class Real>
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::int64_t elements);
  std::span<Real> span() const { return {values_.get(), static_cast<std::size_t>(elements_)}; }

 private:
  struct Free {
    void operator()(Real* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<Real, Free> values_;
  std::int64_t elements_ = 0;
};

template <class Real>
class RankState {
 public:
  // tensors: initial weights by name; nullptr initialises from the seed.
  RankState(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
            const OptimizerConfig& optimizer, std::int64_t seed, const std::map<std::string, NamedTensor>* tensors,
            int compute_threads);

  const Program& program() const { return *program_; }
  const Plan& plan() const { return *plan_; }
  std::int64_t data_rank() const { return data_rank_; }
  RankMemory memory() const;  // without the transport

  // Loads this rank's samples of a step. Sample i of the step's global batch goes to data rank i / (m·b).
  void load(const TokenSource& source, std::int64_t step);
  std::int64_t counted_targets() const;  // of the loaded samples

  void compute(const Op& op);  // forward, loss, backward and update ops

  std::span<Real> values(std::int32_t slot);  // of any slot but the scalars
  double& scalar(std::int32_t slot);          // target_count, loss_sum, gradient_norm

  // What this data-parallel rank alone answers for in a unit: its 1/D, without padding. What it adds to the norm, to
  // dumps, and with zero_stage >= 1 all that it updates.
  ElementRange own_range(Unit unit) const;
  double own_sum_of_squares();
  const std::vector<Unit>& units() const { return units_; }  // that this rank updates
  std::span<const Real> own_parameters(Unit unit);           // elements own_range(unit)
  std::span<const Real> own_gradient(Unit unit);             // reduced; elements own_range(unit)

 private:
  bool is_shard(std::int32_t slot) const;
  std::int64_t elements_of_slot(const Slot& slot) const;
  std::span<Real> own_part(std::int32_t slot, Unit unit);
  ElementRange updated_range(Unit unit) const;
  void allocate();
  void initialize(std::int64_t seed, const std::map<std::string, NamedTensor>* tensors);
  std::span<const std::int32_t> samples_of(const std::vector<std::int32_t>& all, const Op& op) const;
  void forward(const Op& op);
  void loss(const Op& op);
  void backward(const Op& op);
  void update(const Op& op);

  const Plan* plan_;
  const Program* program_;
  std::int64_t data_rank_;
  OptimizerConfig optimizer_;
  int threads_;
  Transformer<Real> transformer_;
  std::vector<AlignedBuffer<Real>> slots_;
  std::vector<double> scalars_;  // [slot]
  std::vector<Unit> units_;
  std::map<Unit, const Op*> update_of_;
  std::map<Unit, AlignedBuffer<Real>> moments_;  // first moments of updated_range(unit), then second ones
  std::map<Unit, std::vector<TensorLayout>> layouts_;
  std::int64_t step_ = 0;                       // of the loaded samples
  std::vector<std::int32_t> tokens_, targets_;  // [micro-batch][b][s]
};

}  // namespace lamina
