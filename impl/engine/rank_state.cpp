#include "impl/engine/rank_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "impl/base/error.h"

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

}  // namespace

template <class Real>
AlignedBuffer<Real>::AlignedBuffer(std::int64_t elements) : elements_(elements) {
  if (elements == 0) {
    return;
  }
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(Real);
  const std::size_t rounded = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  values_.reset(static_cast<Real*>(std::aligned_alloc(kCacheLine, rounded)));
  if (values_ == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(static_cast<void*>(values_.get()), 0, rounded);
}

template <class Real>
RankState<Real>::RankState(const Schedule& schedule, std::int64_t pipeline_rank, std::int64_t data_rank,
                           const OptimizerConfig& optimizer, std::int64_t seed,
                           const std::map<std::string, NamedTensor>* tensors, int compute_threads)
    : plan_(&schedule.plan),
      program_(&schedule.programs.at(static_cast<std::size_t>(pipeline_rank))),
      data_rank_(data_rank),
      optimizer_(optimizer),
      threads_(compute_threads),
      transformer_(schedule.plan.model, schedule.plan.micro_batch_size, schedule.plan.recompute, compute_threads) {
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

template <class Real>
std::int64_t RankState<Real>::elements_of_slot(const Slot& slot) const {
  const auto whole = [&] { return padded(unit_parameters(plan_->model, slot.unit), plan_->parallel.data); };
  switch (slot.kind) {
    case SlotKind::parameters:
    case SlotKind::gradient:
      return whole();
    case SlotKind::parameter_shard:
    case SlotKind::gradient_shard:
      return whole() / plan_->parallel.data;
    case SlotKind::checkpoint:
    case SlotKind::activation_gradient:
      return transformer_.activation_elements();
    case SlotKind::saved:
      return slot.unit.kind == UnitKind::head ? transformer_.head_workspace_elements() : transformer_.saved_elements();
    case SlotKind::target_count:
    case SlotKind::loss_sum:
    case SlotKind::gradient_norm:
      return 0;
  }
  return 0;
}

template <class Real>
void RankState<Real>::allocate() {
  for (const Slot& slot : program_->slots) {
    slots_.emplace_back(elements_of_slot(slot));
  }
  scalars_.assign(program_->slots.size(), 0.0);
  for (const Unit unit : units_) {
    const auto moments = moments_of(optimizer_.kind) * static_cast<std::int64_t>(updated_range(unit).size());
    moments_.emplace(unit, AlignedBuffer<Real>(moments));
  }
  const auto samples = static_cast<std::size_t>(plan_->micro_batches * plan_->micro_batch_size * plan_->model.sequence);
  tokens_.assign(samples, 0);
  targets_.assign(samples, 0);
}

template <class Real>
void RankState<Real>::initialize(std::int64_t seed, const std::map<std::string, NamedTensor>* tensors) {
  for (const Unit unit : units_) {
    const std::int32_t slot = update_of_.at(unit)->writes[0];
    const std::span<Real> stored = values(slot);
    const std::int64_t begin = is_shard(slot) ? data_rank_ * std::ssize(stored) : 0;
    if (tensors == nullptr) {
      initialize_range(plan_->model, unit, seed, begin, begin + std::ssize(stored), stored.data());
      continue;
    }
    const std::vector<double> whole = unit_from_tensors(plan_->model, unit, *tensors);
    const std::int64_t end = std::min(begin + std::ssize(stored), std::ssize(whole));
    for (std::int64_t i = begin; i < end; ++i) {
      stored[static_cast<std::size_t>(i - begin)] = static_cast<Real>(whole[static_cast<std::size_t>(i)]);
    }
  }
}

template <class Real>
RankMemory RankState<Real>::memory() const {
  RankMemory memory;
  const bool by_visit = plan_->zero_stage >= 2 && !plan_->keep_full_gradient;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto bytes = static_cast<std::int64_t>(slots_[i].span().size_bytes());
    switch (program_->slots[i].kind) {
      case SlotKind::parameters:
        (plan_->zero_stage == 3 ? memory.gathered : memory.parameters) += bytes;
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
  for (const auto& [unit, moments] : moments_) {
    memory.optimizer += static_cast<std::int64_t>(moments.span().size_bytes());
  }
  memory.working_set += transformer_.scratch_bytes();
  return memory;
}

template <class Real>
void RankState<Real>::load(const TokenSource& source, std::int64_t step) {
  step_ = step;
  const auto sequence = static_cast<std::size_t>(plan_->model.sequence);
  const std::int64_t samples = plan_->micro_batches * plan_->micro_batch_size;
  const std::int64_t first = step * plan_->global_batch() + data_rank_ * samples;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * sequence;
    source.sample(first + i, std::span(tokens_).subspan(at, sequence), std::span(targets_).subspan(at, sequence));
  }
}

template <class Real>
std::int64_t RankState<Real>::counted_targets() const {
  return std::count_if(targets_.begin(), targets_.end(), [](std::int32_t target) { return target >= 0; });
}

template <class Real>
std::span<const std::int32_t> RankState<Real>::samples_of(const std::vector<std::int32_t>& all, const Op& op) const {
  const auto size = static_cast<std::size_t>(plan_->micro_batch_size * plan_->model.sequence);
  return std::span(all).subspan(static_cast<std::size_t>(op.micro_batch) * size, size);
}

template <class Real>
std::span<Real> RankState<Real>::values(std::int32_t slot) {
  return slots_[static_cast<std::size_t>(slot)].span();
}

template <class Real>
double& RankState<Real>::scalar(std::int32_t slot) {
  LAMINA_CHECK(is_scalar(program_->slots[static_cast<std::size_t>(slot)].kind), "slot {} is not a scalar", slot);
  return scalars_[static_cast<std::size_t>(slot)];
}

template <class Real>
bool RankState<Real>::is_shard(std::int32_t slot) const {
  const SlotKind kind = program_->slots[static_cast<std::size_t>(slot)].kind;
  return kind == SlotKind::parameter_shard || kind == SlotKind::gradient_shard;
}

template <class Real>
ElementRange RankState<Real>::own_range(Unit unit) const {
  const std::int64_t elements = unit_parameters(plan_->model, unit);
  const std::int64_t part = padded(elements, plan_->parallel.data) / plan_->parallel.data;
  return {std::min(data_rank_ * part, elements), std::min((data_rank_ + 1) * part, elements)};
}

template <class Real>
ElementRange RankState<Real>::updated_range(Unit unit) const {
  return plan_->zero_stage == 0 ? ElementRange{0, unit_parameters(plan_->model, unit)} : own_range(unit);
}

template <class Real>
std::span<Real> RankState<Real>::own_part(std::int32_t slot, Unit unit) {
  const ElementRange range = own_range(unit);
  return values(slot).subspan(is_shard(slot) ? 0 : static_cast<std::size_t>(range.begin), range.size());
}

template <class Real>
std::span<const Real> RankState<Real>::own_parameters(Unit unit) {
  return own_part(update_of_.at(unit)->writes[0], unit);
}

template <class Real>
std::span<const Real> RankState<Real>::own_gradient(Unit unit) {
  return own_part(update_of_.at(unit)->reads[0], unit);
}

template <class Real>
double RankState<Real>::own_sum_of_squares() {
  double sum = 0;
  for (const Unit unit : units_) {
    const std::span<const Real> part = own_gradient(unit);
    sum += sum_of_squares(part.data(), std::ssize(part), threads_);
  }
  return sum;
}

template <class Real>
void RankState<Real>::compute(const Op& op) {
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

template <class Real>
void RankState<Real>::forward(const Op& op) {
  const Real* parameters = values(op.reads[0]).data();
  Real* output = values(op.writes[0]).data();
  if (op.unit.kind == UnitKind::embedding) {
    transformer_.embedding_forward(parameters, samples_of(tokens_, op), output);
  } else {
    transformer_.layer_forward(parameters, values(op.reads[1]).data(), output, values(op.writes[1]).data());
  }
}

template <class Real>
void RankState<Real>::loss(const Op& op) {
  const double count = scalar(op.reads[2]);
  scalar(op.writes[2]) += transformer_.head(
      values(op.reads[0]).data(), values(op.reads[1]).data(), samples_of(targets_, op), count > 0 ? 1.0 / count : 0.0,
      values(op.writes[0]).data(), values(op.writes[1]).data(), op.accumulate, values(op.writes[3]).data());
}

template <class Real>
void RankState<Real>::backward(const Op& op) {
  if (op.unit.kind == UnitKind::embedding) {
    transformer_.embedding_backward(samples_of(tokens_, op), values(op.reads[0]).data(), values(op.writes[0]).data(),
                                    op.accumulate);
    return;
  }
  const std::int32_t saved = plan_->recompute == Recompute::full ? op.writes[2] : op.reads[3];
  transformer_.layer_backward(values(op.reads[0]).data(), values(op.reads[1]).data(), values(saved).data(),
                              values(op.writes[0]).data(), values(op.writes[1]).data(), op.accumulate);
}

template <class Real>
void RankState<Real>::update(const Op& op) {
  const ElementRange range = updated_range(op.unit);
  const auto at = [&](std::int32_t slot) { return values(slot).data() + (is_shard(slot) ? 0 : range.begin); };
  const double scale = plan_->clipping ? clip_scale(optimizer_, scalar(op.reads[1])) : 1.0;
  const std::span<Real> moments = moments_.at(op.unit).span();
  Real* moment1 = moments.data();
  Real* moment2 = moments.empty() ? nullptr : moment1 + range.size();
  update_range(optimizer_, layouts_.at(op.unit), range.begin, range.end, step_ + 1, scale, at(op.writes[0]),
               at(op.reads[0]), moment1, moment2, threads_);
}

template class AlignedBuffer<float>;
template class AlignedBuffer<double>;
template class RankState<float>;
template class RankState<double>;

}  // namespace lamina
