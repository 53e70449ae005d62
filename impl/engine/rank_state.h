// One rank's memory and what its ops do to it: shared by the engine and by the interpreter on real numbers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "impl/base/real.h"
#include "impl/engine/loss_scale.h"
#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/model/stored_transformer.h"
#include "impl/model/weights.h"
#include "impl/schedule/schedule.h"

namespace lamina {

// Bytes a rank holds by kind; all of it is allocated before the first step.
struct RankMemory {
  std::int64_t parameters = 0;   // resident whole parameters, or shards
  std::int64_t gradients = 0;    // whole gradients, or shards
  std::int64_t optimizer = 0;    // the optimizer's moments, and its masters of 16-bit weights
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

// The element types of a rank's memory, by what the weights are stored in.
template <class StoredReal>
struct Numerics {
  using Stored = StoredReal;
  using Real = Wide<Stored>;                                          // of the arithmetic; moments too
  static constexpr bool kHasMasters = !std::is_same_v<Stored, Real>;  // weights in Real, which the optimizer updates

  // Of one element of a slot of this kind: the one place that says which kinds are stored and which are wide.
  static constexpr std::int64_t element_bytes(SlotKind kind) {
    switch (kind) {
      case SlotKind::parameters:
      case SlotKind::parameter_shard:
      case SlotKind::checkpoint:
      case SlotKind::saved:
      case SlotKind::activation_gradient:
        return sizeof(Stored);
      case SlotKind::gradient:
      case SlotKind::gradient_shard:
        return sizeof(Real);
      case SlotKind::target_count:
      case SlotKind::loss_sum:
      case SlotKind::gradient_norm:
        return 0;  // numbers in double, beside the slots
    }
    return 0;
  }
};

// Zeroed memory on a cache line's boundary.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(memory_.get()), static_cast<std::size_t>(bytes_) / sizeof(T)};
  }

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> memory_;
  std::int64_t bytes_ = 0;
};

// What a rank of this schedule will hold, without the transport, and without allocating anything: a rank's memory is
// allocated by the same sizes. Works for any sizes whose products fit 64 bits.
RankMemory planned_memory(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
                          const OptimizerConfig& optimizer, const Precision& precision, int compute_threads);

// StoredReal: double, float, Bf16 or Fp16.
template <class StoredReal>
class RankState {
 public:
  using Stored = typename Numerics<StoredReal>::Stored;
  using Real = typename Numerics<StoredReal>::Real;

  // precision: its compute type is StoredReal's. tensors: initial weights by name; nullptr initialises from the seed.
  RankState(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
            const OptimizerConfig& optimizer, const Precision& precision, std::int64_t seed,
            const std::map<std::string, NamedTensor>* tensors, int compute_threads);

  const Program& program() const { return *program_; }
  const Plan& plan() const { return *plan_; }
  std::int64_t data_rank() const { return data_rank_; }
  RankMemory memory() const;  // without the transport

  // Loads this rank's samples of a step. Sample i of the step's global batch goes to data rank i / (m·b).
  void load(const TokenSource& source, std::int64_t step);
  std::int64_t counted_targets() const;  // of the loaded samples
  // After the step's last op, and after all that looks at its gradients: the loss scale and the count of updates go on.
  void end_step();

  void compute(const Op& op);  // forward, loss, backward and update ops

  std::span<Stored> stored(std::int32_t slot);  // parameters and activations
  std::span<Real> gradient(std::int32_t slot);  // gradients of parameters, times the loss scale
  double& scalar(std::int32_t slot);            // target_count, loss_sum, gradient_norm (without the loss scale)

  // What this data-parallel rank alone answers for in a unit: its 1/D, without padding. What it adds to the norm, to
  // dumps, and with zero_stage >= 1 all that it updates.
  ElementRange own_range(Unit unit) const;
  double own_sum_of_squares();                               // of gradients without the loss scale
  const std::vector<Unit>& units() const { return units_; }  // that this rank updates
  std::vector<Real> own_parameters(Unit unit);               // elements own_range(unit); the masters where it has them
  std::vector<Real> own_gradient(Unit unit);  // reduced, without the loss scale; elements own_range(unit)

  double loss_scale() const { return loss_scale_.value(); }  // of the step; 1 where the loss is not scaled
  bool step_skipped();                                       // once the norm is there: gradients overflowed

 private:
  bool is_shard(std::int32_t slot) const;
  template <class T>
  std::span<T> own_part(std::span<T> values, std::int32_t slot, Unit unit);
  std::span<const Real> scaled_own_gradient(Unit unit);
  ElementRange updated_range(Unit unit) const;
  void allocate();
  void initialize(std::int64_t seed, const std::map<std::string, NamedTensor>* tensors);
  std::vector<Real> initial_values(Unit unit, ElementRange range, std::int64_t seed,
                                   const std::map<std::string, NamedTensor>* tensors) const;
  std::span<const std::int32_t> samples_of(const std::vector<std::int32_t>& all, const Op& op) const;
  void forward(const Op& op);
  void loss(const Op& op);
  void backward(const Op& op);
  void update(const Op& op);

  const Plan* plan_;
  const Program* program_;
  std::int64_t data_rank_;
  OptimizerConfig optimizer_;
  LossScale loss_scale_;
  int threads_;
  StoredTransformer<Stored> transformer_;
  std::vector<AlignedBuffer> slots_;
  std::vector<double> scalars_;  // [slot]
  std::int32_t norm_slot_ = -1;
  std::vector<Unit> units_;
  std::map<Unit, const Op*> update_of_;
  std::map<Unit, AlignedBuffer> moments_;  // first moments of updated_range(unit), then second ones
  std::map<Unit, AlignedBuffer> masters_;  // weights of updated_range(unit)
  std::map<Unit, std::vector<TensorLayout>> layouts_;
  std::int64_t updates_ = 0;                    // steps that were not skipped
  std::vector<std::int32_t> tokens_, targets_;  // [micro-batch][b][s]
};

}  // namespace lamina
