#include "impl/engine/rank_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "impl/base/error.h"
#include "impl/kernels/convert.h"

namespace lamina {
namespace {

constexpr std::size_t kCacheLine = 64;

bool is_scalar(SlotKind kind) {
  return kind == SlotKind::target_count || kind == SlotKind::loss_sum || kind == SlotKind::gradient_norm;
}

// As PyTorch's clip_grad_norm_: never scales up, and 1e-6 keeps a zero norm from dividing by zero.
double clip_scale(const OptimizerConfig& optimizer, double norm) {
  return optimizer.clip_norm > 0 ? std::min(1.0, optimizer.clip_norm / (norm + 1e-6)) : 1.0;
}

std::int64_t elements_of_slot(const Plan& plan, const StoredSizes& sizes, const Slot& slot) {
  const auto whole = [&] { return padded(unit_parameters(plan.model, slot.unit), plan.parallel.data); };
  switch (slot.kind) {
    case SlotKind::parameters:
    case SlotKind::gradient:
      return whole();
    case SlotKind::parameter_shard:
    case SlotKind::gradient_shard:
      return whole() / plan.parallel.data;
    case SlotKind::checkpoint:
    case SlotKind::activation_gradient:
      return sizes.activation;
    case SlotKind::saved:
      return slot.unit.kind == UnitKind::head ? sizes.head_workspace : sizes.saved;
    case SlotKind::target_count:
    case SlotKind::loss_sum:
    case SlotKind::gradient_norm:
      return 0;
  }
  return 0;
}

template <class Stored>
std::int64_t bytes_of_slot(const Plan& plan, const StoredSizes& sizes, const Slot& slot) {
  return elements_of_slot(plan, sizes, slot) * Numerics<Stored>::element_bytes(slot.kind);
}

ElementRange own_range_of(const Plan& plan, Unit unit, std::int64_t data_rank) {
  const std::int64_t elements = unit_parameters(plan.model, unit);
  const std::int64_t part = padded(elements, plan.parallel.data) / plan.parallel.data;
  return {std::min(data_rank * part, elements), std::min((data_rank + 1) * part, elements)};
}

ElementRange updated_range_of(const Plan& plan, Unit unit, std::int64_t data_rank) {
  return plan.zero_stage == 0 ? ElementRange{0, unit_parameters(plan.model, unit)}
                              : own_range_of(plan, unit, data_rank);
}

// Of one unit: the moments, and the masters where the weights have 16 bits.
template <class Stored>
struct OptimizerBytes {
  std::int64_t moments, masters;
  OptimizerBytes(const OptimizerConfig& optimizer, const ElementRange& updated)
      : moments(moments_of(optimizer.kind) * bytes_of(updated)),
        masters(Numerics<Stored>::kHasMasters ? bytes_of(updated) : 0) {}

 private:
  static std::int64_t bytes_of(const ElementRange& updated) {
    return static_cast<std::int64_t>(updated.size() * sizeof(typename Numerics<Stored>::Real));
  }
};

void add_slot(RankMemory& memory, const Plan& plan, SlotKind kind, std::int64_t bytes) {
  const bool by_visit = plan.zero_stage >= 2 && !plan.keep_full_gradient;
  switch (kind) {
    case SlotKind::parameters:
      (plan.zero_stage == 3 ? memory.gathered : memory.parameters) += bytes;
      break;
    case SlotKind::parameter_shard:
      memory.parameters += bytes;
      break;
    case SlotKind::gradient:
      (by_visit ? memory.gathered : memory.gradients) += bytes;
      break;
    case SlotKind::gradient_shard:
      memory.gradients += bytes;
      break;
    case SlotKind::checkpoint:
      memory.checkpoints += bytes;
      break;
    default:
      memory.working_set += bytes;
  }
}

template <class Stored>
RankMemory planned_memory_in(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
                             const OptimizerConfig& optimizer, int compute_threads) {
  const Plan& plan = schedule.plan;
  const Program& program = schedule.programs.at(static_cast<std::size_t>(pipeline_rank));
  const StoredSizes sizes = stored_sizes<Stored>(plan.model, plan.micro_batch_size, plan.recompute, compute_threads);
  RankMemory memory;
  for (const Slot& slot : program.slots) {
    add_slot(memory, plan, slot.kind, bytes_of_slot<Stored>(plan, sizes, slot));
  }
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::update) {
      const OptimizerBytes<Stored> bytes(optimizer, updated_range_of(plan, op.unit, data_rank));
      memory.optimizer += bytes.moments + bytes.masters;
    }
  }
  memory.working_set += sizes.scratch_bytes;
  return memory;
}

}  // namespace

RankMemory planned_memory(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
                          const OptimizerConfig& optimizer, const Precision& precision, int compute_threads) {
  switch (precision.compute) {
    case RealType::fp64:
      return planned_memory_in<double>(schedule, pipeline_rank, data_rank, optimizer, compute_threads);
    case RealType::fp32:
      return planned_memory_in<float>(schedule, pipeline_rank, data_rank, optimizer, compute_threads);
    case RealType::bf16:
      return planned_memory_in<Bf16>(schedule, pipeline_rank, data_rank, optimizer, compute_threads);
    case RealType::fp16:
      return planned_memory_in<Fp16>(schedule, pipeline_rank, data_rank, optimizer, compute_threads);
  }
  throw Error("not a real type");
}

AlignedBuffer::AlignedBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  const std::size_t rounded = (static_cast<std::size_t>(bytes) + kCacheLine - 1) / kCacheLine * kCacheLine;
  memory_.reset(std::aligned_alloc(kCacheLine, rounded));
  if (memory_ == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(memory_.get(), 0, rounded);
}

template <class StoredReal>
RankState<StoredReal>::RankState(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
                                 const OptimizerConfig& optimizer, const Precision& precision, std::int64_t seed,
                                 const std::map<std::string, NamedTensor>* tensors, int compute_threads)
    : plan_(&schedule.plan),
      program_(&schedule.programs.at(static_cast<std::size_t>(pipeline_rank))),
      data_rank_(data_rank),
      optimizer_(optimizer),
      loss_scale_(precision),
      threads_(compute_threads),
      transformer_(schedule.plan.model, schedule.plan.micro_batch_size, schedule.plan.recompute, compute_threads) {
  LAMINA_CHECK(plan_->update_after_norm || !(precision.scales_loss() || optimizer.clip_norm > 0),
               "clipping and loss scaling need a plan that updates after the norm");
  for (const Op& op : program_->ops) {
    if (op.kind == OpKind::update) {
      units_.push_back(op.unit);
      update_of_[op.unit] = &op;
      layouts_[op.unit] = unit_layout(plan_->model, op.unit);
    }
  }
  allocate();
  initialize(seed, tensors);
}

template <class StoredReal>
void RankState<StoredReal>::allocate() {
  const StoredSizes sizes = stored_sizes<Stored>(plan_->model, plan_->micro_batch_size, plan_->recompute, threads_);
  for (const Slot& slot : program_->slots) {
    if (slot.kind == SlotKind::gradient_norm) {
      norm_slot_ = static_cast<std::int32_t>(slots_.size());
    }
    slots_.emplace_back(bytes_of_slot<Stored>(*plan_, sizes, slot));
  }
  scalars_.assign(program_->slots.size(), 0.0);
  for (const Unit unit : units_) {
    const OptimizerBytes<Stored> bytes(optimizer_, updated_range(unit));
    moments_.emplace(unit, AlignedBuffer(bytes.moments));
    if constexpr (Numerics<Stored>::kHasMasters) {
      masters_.emplace(unit, AlignedBuffer(bytes.masters));
    }
  }
  const auto samples = static_cast<std::size_t>(plan_->micro_batches * plan_->micro_batch_size * plan_->model.sequence);
  tokens_.assign(samples, 0);
  targets_.assign(samples, 0);
}

// Elements of a unit before the first step; 0 beyond its last tensor.
template <class StoredReal>
auto RankState<StoredReal>::initial_values(Unit unit, ElementRange range, std::int64_t seed,
                                           const std::map<std::string, NamedTensor>* tensors) const
    -> std::vector<Real> {
  std::vector<Real> values(range.size());
  if (tensors == nullptr) {
    initialize_range(plan_->model, unit, seed, range.begin, range.end, values.data());
    return values;
  }
  const std::vector<double> whole = unit_from_tensors(plan_->model, unit, *tensors);
  for (std::int64_t i = range.begin; i < std::min(range.end, std::ssize(whole)); ++i) {
    values[static_cast<std::size_t>(i - range.begin)] = static_cast<Real>(whole[static_cast<std::size_t>(i)]);
  }
  return values;
}

template <class StoredReal>
void RankState<StoredReal>::initialize(std::int64_t seed, const std::map<std::string, NamedTensor>* tensors) {
  for (const Unit unit : units_) {
    const std::int32_t slot = update_of_.at(unit)->writes[0];
    const std::int64_t elements = std::ssize(stored(slot));
    const std::int64_t begin = is_shard(slot) ? data_rank_ * elements : 0;
    const std::vector<Real> values = initial_values(unit, {begin, begin + elements}, seed, tensors);
    kernels::convert_all(values.data(), stored(slot).data(), elements, threads_);
    if constexpr (Numerics<Stored>::kHasMasters) {
      const ElementRange range = updated_range(unit);
      std::copy_n(values.begin() + (range.begin - begin), range.size(), masters_.at(unit).template as<Real>().begin());
    }
  }
}

template <class StoredReal>
RankMemory RankState<StoredReal>::memory() const {
  RankMemory memory;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    add_slot(memory, *plan_, program_->slots[i].kind, slots_[i].bytes());
  }
  for (const auto* buffers : {&moments_, &masters_}) {
    for (const auto& [unit, buffer] : *buffers) {
      memory.optimizer += buffer.bytes();
    }
  }
  memory.working_set += transformer_.scratch_bytes();
  return memory;
}

template <class StoredReal>
void RankState<StoredReal>::load(const TokenSource& source, std::int64_t step) {
  transformer_.parameters_change();
  const auto sequence = static_cast<std::size_t>(plan_->model.sequence);
  const std::int64_t samples = plan_->micro_batches * plan_->micro_batch_size;
  const std::int64_t first = step * plan_->global_batch() + data_rank_ * samples;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * sequence;
    source.sample(first + i, std::span(tokens_).subspan(at, sequence), std::span(targets_).subspan(at, sequence));
  }
}

template <class StoredReal>
std::int64_t RankState<StoredReal>::counted_targets() const {
  return std::count_if(targets_.begin(), targets_.end(), [](std::int32_t target) { return target >= 0; });
}

template <class StoredReal>
std::span<const std::int32_t> RankState<StoredReal>::samples_of(const std::vector<std::int32_t>& all,
                                                                const Op& op) const {
  const auto size = static_cast<std::size_t>(plan_->micro_batch_size * plan_->model.sequence);
  return std::span(all).subspan(static_cast<std::size_t>(op.micro_batch) * size, size);
}

template <class StoredReal>
void RankState<StoredReal>::end_step() {
  updates_ += step_skipped() ? 0 : 1;
  loss_scale_.end_step(scalar(norm_slot_));
}

template <class StoredReal>
bool RankState<StoredReal>::step_skipped() {
  return loss_scale_.overflowed(scalar(norm_slot_));
}

template <class StoredReal>
auto RankState<StoredReal>::stored(std::int32_t slot) -> std::span<Stored> {
  return slots_[static_cast<std::size_t>(slot)].template as<Stored>();
}

template <class StoredReal>
auto RankState<StoredReal>::gradient(std::int32_t slot) -> std::span<Real> {
  const SlotKind kind = program_->slots[static_cast<std::size_t>(slot)].kind;
  LAMINA_CHECK(kind == SlotKind::gradient || kind == SlotKind::gradient_shard, "slot {} holds no gradient", slot);
  return slots_[static_cast<std::size_t>(slot)].template as<Real>();
}

template <class StoredReal>
double& RankState<StoredReal>::scalar(std::int32_t slot) {
  LAMINA_CHECK(is_scalar(program_->slots[static_cast<std::size_t>(slot)].kind), "slot {} is not a scalar", slot);
  return scalars_[static_cast<std::size_t>(slot)];
}

template <class StoredReal>
bool RankState<StoredReal>::is_shard(std::int32_t slot) const {
  const SlotKind kind = program_->slots[static_cast<std::size_t>(slot)].kind;
  return kind == SlotKind::parameter_shard || kind == SlotKind::gradient_shard;
}

template <class StoredReal>
ElementRange RankState<StoredReal>::own_range(Unit unit) const {
  return own_range_of(*plan_, unit, data_rank_);
}

template <class StoredReal>
ElementRange RankState<StoredReal>::updated_range(Unit unit) const {
  return updated_range_of(*plan_, unit, data_rank_);
}

template <class StoredReal>
template <class T>
std::span<T> RankState<StoredReal>::own_part(std::span<T> values, std::int32_t slot, Unit unit) {
  const ElementRange range = own_range(unit);
  return values.subspan(is_shard(slot) ? 0 : static_cast<std::size_t>(range.begin), range.size());
}

template <class StoredReal>
auto RankState<StoredReal>::own_parameters(Unit unit) -> std::vector<Real> {
  std::span<const Real> own;
  if constexpr (Numerics<Stored>::kHasMasters) {
    const ElementRange range = own_range(unit);
    own = masters_.at(unit).template as<Real>().subspan(
        static_cast<std::size_t>(range.begin - updated_range(unit).begin), range.size());
  } else {
    const std::int32_t slot = update_of_.at(unit)->writes[0];
    own = own_part(stored(slot), slot, unit);
  }
  return {own.begin(), own.end()};
}

template <class StoredReal>
auto RankState<StoredReal>::scaled_own_gradient(Unit unit) -> std::span<const Real> {
  const std::int32_t slot = update_of_.at(unit)->reads[0];
  return own_part(gradient(slot), slot, unit);
}

template <class StoredReal>
auto RankState<StoredReal>::own_gradient(Unit unit) -> std::vector<Real> {
  const std::span<const Real> scaled = scaled_own_gradient(unit);
  std::vector<Real> own(scaled.begin(), scaled.end());
  for (Real& value : own) {
    value = static_cast<Real>(value / loss_scale());
  }
  return own;
}

template <class StoredReal>
double RankState<StoredReal>::own_sum_of_squares() {
  double sum = 0;
  for (const Unit unit : units_) {
    const std::span<const Real> part = scaled_own_gradient(unit);
    sum += sum_of_squares(part.data(), std::ssize(part), threads_);
  }
  return sum / (loss_scale() * loss_scale());
}

template <class StoredReal>
void RankState<StoredReal>::compute(const Op& op) {
  switch (op.kind) {
    case OpKind::forward:
      return forward(op);
    case OpKind::loss:
      return loss(op);
    case OpKind::backward:
      return backward(op);
    case OpKind::update:
      return update(op);
    default:
      LAMINA_CHECK(false, "{} is not a compute op", describe(op));
  }
}

template <class StoredReal>
void RankState<StoredReal>::forward(const Op& op) {
  const Stored* parameters = stored(op.reads[0]).data();
  Stored* output = stored(op.writes[0]).data();
  if (op.unit.kind == UnitKind::embedding) {
    transformer_.embedding_forward(parameters, samples_of(tokens_, op), output);
  } else {
    transformer_.layer_forward(op.unit, parameters, stored(op.reads[1]).data(), output, stored(op.writes[1]).data());
  }
}

template <class StoredReal>
void RankState<StoredReal>::loss(const Op& op) {
  const double count = scalar(op.reads[2]);
  scalar(op.writes[2]) +=
      transformer_.head(stored(op.reads[0]).data(), stored(op.reads[1]).data(), samples_of(targets_, op),
                        count > 0 ? loss_scale() / count : 0.0, stored(op.writes[0]).data(),
                        gradient(op.writes[1]).data(), op.accumulate, stored(op.writes[3]).data());
}

template <class StoredReal>
void RankState<StoredReal>::backward(const Op& op) {
  if (op.unit.kind == UnitKind::embedding) {
    transformer_.embedding_backward(samples_of(tokens_, op), stored(op.reads[0]).data(), gradient(op.writes[0]).data(),
                                    op.accumulate);
    return;
  }
  const std::int32_t saved = plan_->recompute == Recompute::full ? op.writes[2] : op.reads[3];
  transformer_.layer_backward(op.unit, stored(op.reads[0]).data(), stored(op.reads[1]).data(), stored(saved).data(),
                              stored(op.writes[0]).data(), gradient(op.writes[1]).data(), op.accumulate);
}

template <class StoredReal>
void RankState<StoredReal>::update(const Op& op) {
  double scale = 1 / loss_scale();
  if (plan_->update_after_norm) {
    const double norm = scalar(op.reads[1]);
    if (loss_scale_.overflowed(norm)) {
      return;  // weights, masters and moments stay as they are
    }
    scale *= clip_scale(optimizer_, norm);
  }
  const ElementRange range = updated_range(op.unit);
  const auto at = [&](std::int32_t slot) { return is_shard(slot) ? 0 : range.begin; };
  Stored* const weights = stored(op.writes[0]).data() + at(op.writes[0]);
  Real* masters = nullptr;
  if constexpr (Numerics<Stored>::kHasMasters) {
    masters = masters_.at(op.unit).template as<Real>().data();
  } else {
    masters = weights;
  }
  const std::span<Real> moments = moments_.at(op.unit).template as<Real>();
  Real* moment1 = moments.data();
  Real* moment2 = moments.empty() ? nullptr : moment1 + range.size();
  update_range(optimizer_, layouts_.at(op.unit), range.begin, range.end, updates_ + 1, scale, masters,
               gradient(op.reads[0]).data() + at(op.reads[0]), moment1, moment2, threads_);
  if constexpr (Numerics<Stored>::kHasMasters) {
    kernels::convert_all(masters, weights, static_cast<std::int64_t>(range.size()), threads_);
  }
}

template class RankState<double>;
template class RankState<float>;
template class RankState<Bf16>;
template class RankState<Fp16>;

}  // namespace lamina
