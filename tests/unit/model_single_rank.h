// The whole model on one rank, by calling the Transformer's units one after the other: what every plan must equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "impl/model/data.h"
#include "impl/model/optimizer.h"
#include "impl/model/transformer.h"
#include "impl/model/weights.h"

namespace lamina::testing {

struct Sequences {
  std::int64_t sequence = 0;
  std::vector<std::int32_t> tokens;   // [sequences, sequence]
  std::vector<std::int32_t> targets;  // the same; -1 is not counted
  std::int64_t count() const { return std::ssize(tokens) / sequence; }
  std::int64_t counted_targets() const {
    std::int64_t counted = 0;
    for (const std::int32_t target : targets) {
      counted += target >= 0 ? 1 : 0;
    }
    return counted;
  }
};

inline Sequences read_sequences(const TokenSource& source, std::int64_t sequence, std::int64_t count) {
  Sequences read{.sequence = sequence,
                 .tokens = std::vector<std::int32_t>(static_cast<std::size_t>(sequence * count)),
                 .targets = std::vector<std::int32_t>(static_cast<std::size_t>(sequence * count))};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = static_cast<std::size_t>(i * sequence);
    const auto size = static_cast<std::size_t>(sequence);
    source.sample(i, std::span(read.tokens).subspan(begin, size), std::span(read.targets).subspan(begin, size));
  }
  return read;
}

template <class Real>
class SingleRank {
 public:
  struct UnitState {
    Unit unit;
    std::vector<TensorLayout> layout;
    std::vector<Real> parameters, gradient, moment1, moment2;
  };

  SingleRank(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute, int threads = 1)
      : shape_(shape),
        micro_batch_size_(micro_batch_size),
        recompute_(recompute),
        threads_(threads),
        transformer_(shape, micro_batch_size, recompute, threads) {
    for (const Unit unit : all_units(shape)) {
      const auto size = static_cast<std::size_t>(unit_parameters(shape, unit));
      // Gradients begin as rubbish: the first micro-batch must replace them.
      units_.push_back({.unit = unit,
                        .layout = unit_layout(shape, unit),
                        .parameters = std::vector<Real>(size),
                        .gradient = std::vector<Real>(size, Real(7)),
                        .moment1 = std::vector<Real>(size),
                        .moment2 = std::vector<Real>(size)});
    }
    const auto activations = static_cast<std::size_t>(transformer_.activation_elements());
    const auto layers = static_cast<std::size_t>(shape.layers);
    checkpoints_.assign(layers + 1, std::vector<Real>(activations));
    saved_.assign(layers, std::vector<Real>(static_cast<std::size_t>(transformer_.saved_elements())));
    activation_gradient_.resize(activations);
    workspace_.resize(static_cast<std::size_t>(transformer_.head_workspace_elements()));
  }

  void load(const std::map<std::string, NamedTensor>& tensors) {
    for (UnitState& state : units_) {
      const std::vector<double> values = unit_from_tensors(shape_, state.unit, tensors);
      for (std::size_t i = 0; i < values.size(); ++i) {
        state.parameters[i] = static_cast<Real>(values[i]);
      }
    }
  }

  void initialize(std::int64_t seed) {
    for (UnitState& state : units_) {
      initialize_range(shape_, state.unit, seed, 0, std::ssize(state.parameters), state.parameters.data());
    }
  }

  // Loss (mean over counted targets) and gradients of a batch, micro-batch after micro-batch.
  double forward_backward(const Sequences& batch) {
    const std::int64_t counted = batch.counted_targets();
    const std::int64_t tokens = micro_batch_size_ * shape_.sequence;
    double loss = 0;
    for (std::int64_t at = 0; at < std::ssize(batch.tokens); at += tokens) {
      const auto begin = static_cast<std::size_t>(at);
      const auto size = static_cast<std::size_t>(tokens);
      loss += micro_batch(std::span(batch.tokens).subspan(begin, size), std::span(batch.targets).subspan(begin, size),
                          1 / static_cast<double>(counted), at > 0);
    }
    return loss / static_cast<double>(counted);
  }

  double gradient_norm() const {
    double total = 0;
    for (const UnitState& state : units_) {
      total += sum_of_squares(state.gradient.data(), std::ssize(state.gradient), threads_);
    }
    return std::sqrt(total);
  }

  void update(const OptimizerConfig& config, std::int64_t step) {
    for (UnitState& state : units_) {
      update_range(config, state.layout, 0, std::ssize(state.parameters), step, 1.0, state.parameters.data(),
                   state.gradient.data(), state.moment1.data(), state.moment2.data(), threads_);
    }
  }

  std::vector<UnitState>& units() { return units_; }

  std::map<std::string, std::vector<double>> gradients() const {
    std::map<std::string, std::vector<double>> tensors;
    for (const UnitState& state : units_) {
      for (const TensorLayout& tensor : state.layout) {
        const auto begin = state.gradient.begin() + tensor.offset;
        tensors[tensor.name] = std::vector<double>(begin, begin + tensor.elements);
      }
    }
    return tensors;
  }

 private:
  double micro_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, double loss_scale,
                     bool accumulate) {
    const auto layers = static_cast<std::size_t>(shape_.layers);
    transformer_.embedding_forward(units_[0].parameters.data(), tokens, checkpoints_[0].data());
    for (std::size_t i = 0; i < layers; ++i) {
      transformer_.layer_forward(units_[i + 1].parameters.data(), checkpoints_[i].data(), checkpoints_[i + 1].data(),
                                 saved_[i].data());
    }
    UnitState& head = units_.back();
    const double loss =
        transformer_.head(head.parameters.data(), checkpoints_[layers].data(), targets, loss_scale,
                          activation_gradient_.data(), head.gradient.data(), accumulate, workspace_.data());
    for (std::size_t i = layers; i-- > 0;) {
      // With full recomputation nothing that forward left may matter.
      if (recompute_ == Recompute::full) {
        std::fill(saved_[i].begin(), saved_[i].end(), Real(3));
      }
      transformer_.layer_backward(units_[i + 1].parameters.data(), checkpoints_[i].data(), saved_[i].data(),
                                  activation_gradient_.data(), units_[i + 1].gradient.data(), accumulate);
    }
    transformer_.embedding_backward(tokens, activation_gradient_.data(), units_[0].gradient.data(), accumulate);
    return loss;
  }

  ModelShape shape_;
  std::int64_t micro_batch_size_;
  Recompute recompute_;
  int threads_;
  Transformer<Real> transformer_;
  std::vector<UnitState> units_;
  std::vector<std::vector<Real>> checkpoints_, saved_;
  std::vector<Real> activation_gradient_, workspace_;
};

}  // namespace lamina::testing
