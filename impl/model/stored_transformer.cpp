#include "impl/model/stored_transformer.h"

#include <algorithm>

#include "impl/kernels/convert.h"

namespace lamina {
namespace {

template <class Stored>
constexpr bool kConverts = !std::is_same_v<Stored, Wide<Stored>>;

std::int64_t largest_unit(const ModelShape& shape) {
  return std::max({unit_parameters(shape, embedding_unit()), unit_parameters(shape, layer_unit(0)),
                   unit_parameters(shape, head_unit())});
}

}  // namespace

template <class Stored>
Wide<Stored>* WideView<Stored>::read(const Stored* buffer, std::int64_t elements) {
  if constexpr (kConverts) {
    kernels::convert_all(buffer, scratch_.data(), elements, threads_);
    return scratch_.data();
  } else {
    return const_cast<Stored*>(buffer);  // callers that only read take it as a pointer to const
  }
}

template <class Stored>
Wide<Stored>* WideView<Stored>::room(Stored* buffer) {
  if constexpr (kConverts) {
    return scratch_.data();
  } else {
    return buffer;
  }
}

template <class Stored>
void WideView<Stored>::keep(Stored* buffer, std::int64_t elements) {
  if constexpr (kConverts) {
    kernels::convert_all(scratch_.data(), buffer, elements, threads_);
  }
}

template <class Stored>
StoredTransformer<Stored>::StoredTransformer(const ModelShape& shape, std::int64_t micro_batch_size,
                                             Recompute recompute, int compute_threads)
    : shape_(shape),
      keeps_saved_(recompute != Recompute::full),
      transformer_(shape, micro_batch_size, recompute, compute_threads),
      parameters_(largest_unit(shape), compute_threads),
      input_(transformer_.activation_elements(), compute_threads),
      output_(transformer_.activation_elements(), compute_threads),
      saved_(std::max(transformer_.saved_elements(), transformer_.head_workspace_elements()), compute_threads) {}

template <class Stored>
std::int64_t StoredTransformer<Stored>::saved_elements() const {
  return kConverts<Stored> && !keeps_saved_ ? 0 : transformer_.saved_elements();
}

template <class Stored>
std::int64_t StoredTransformer<Stored>::head_workspace_elements() const {
  return kConverts<Stored> ? 0 : transformer_.head_workspace_elements();
}

template <class Stored>
std::int64_t StoredTransformer<Stored>::scratch_bytes() const {
  return transformer_.scratch_bytes() + parameters_.bytes() + input_.bytes() + output_.bytes() + saved_.bytes();
}

template <class Stored>
const typename StoredTransformer<Stored>::Real* StoredTransformer<Stored>::parameters_of(Unit unit,
                                                                                         const Stored* parameters) {
  if (kConverts<Stored> && converted_ == unit) {
    return parameters_.room(nullptr);
  }
  converted_ = unit;
  return parameters_.read(parameters, unit_parameters(shape_, unit));
}

template <class Stored>
void StoredTransformer<Stored>::embedding_forward(const Stored* parameters, std::span<const std::int32_t> tokens,
                                                  Stored* output) {
  transformer_.embedding_forward(parameters_of(embedding_unit(), parameters), tokens, output_.room(output));
  output_.keep(output, activation_elements());
}

template <class Stored>
void StoredTransformer<Stored>::embedding_backward(std::span<const std::int32_t> tokens, const Stored* output_gradient,
                                                   Real* gradient, bool accumulate) {
  transformer_.embedding_backward(tokens, output_.read(output_gradient, activation_elements()), gradient, accumulate);
}

template <class Stored>
void StoredTransformer<Stored>::layer_forward(Unit layer, const Stored* parameters, const Stored* input, Stored* output,
                                              Stored* saved) {
  transformer_.layer_forward(parameters_of(layer, parameters), input_.read(input, activation_elements()),
                             output_.room(output), saved_.room(saved));
  output_.keep(output, activation_elements());
  saved_.keep(saved, saved_elements());
}

template <class Stored>
void StoredTransformer<Stored>::layer_backward(Unit layer, const Stored* parameters, const Stored* input, Stored* saved,
                                               Stored* activation_gradient, Real* gradient, bool accumulate) {
  transformer_.layer_backward(parameters_of(layer, parameters), input_.read(input, activation_elements()),
                              saved_.read(saved, saved_elements()),
                              output_.read(activation_gradient, activation_elements()), gradient, accumulate);
  output_.keep(activation_gradient, activation_elements());
}

template <class Stored>
double StoredTransformer<Stored>::head(const Stored* parameters, const Stored* input,
                                       std::span<const std::int32_t> targets, double loss_scale,
                                       Stored* activation_gradient, Real* gradient, bool accumulate,
                                       Stored* workspace) {
  const double loss =
      transformer_.head(parameters_of(head_unit(), parameters), input_.read(input, activation_elements()), targets,
                        loss_scale, output_.room(activation_gradient), gradient, accumulate, saved_.room(workspace));
  output_.keep(activation_gradient, activation_elements());
  return loss;
}

template class WideView<double>;
template class WideView<float>;
template class WideView<Bf16>;
template class WideView<Fp16>;
template class StoredTransformer<double>;
template class StoredTransformer<float>;
template class StoredTransformer<Bf16>;
template class StoredTransformer<Fp16>;

}  // namespace lamina
