#include "impl/model/stored_transformer.h"

#include <algorithm>

#include "impl/base/error.h"
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
StoredSizes stored_sizes(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute,
                         int compute_threads) {
  const TransformerSizes inner = transformer_sizes(shape, micro_batch_size, recompute, compute_threads);
  const bool keeps_saved = !kConverts<Stored> || recompute != Recompute::full;  // from forward to backward
  StoredSizes sizes{.activation = inner.activation,
                    .saved = keeps_saved ? inner.saved : 0,
                    .head_workspace = kConverts<Stored> ? 0 : inner.head_workspace,
                    .parameters_view = largest_unit(shape),
                    .saved_view = std::max(inner.saved, inner.head_workspace),
                    .scratch_bytes = scratch_bytes_of<Wide<Stored>>(inner)};
  for (const std::int64_t view : {sizes.parameters_view, sizes.activation, sizes.activation, sizes.saved_view}) {
    sizes.scratch_bytes += WideView<Stored>::bytes_for(view);
  }
  return sizes;
}

template <class Stored>
StoredTransformer<Stored>::StoredTransformer(const ModelShape& shape, std::int64_t micro_batch_size,
                                             Recompute recompute, int compute_threads)
    : shape_(shape),
      sizes_(stored_sizes<Stored>(shape, micro_batch_size, recompute, compute_threads)),
      transformer_(shape, micro_batch_size, recompute, compute_threads),
      parameters_(sizes_.parameters_view, compute_threads),
      input_(sizes_.activation, compute_threads),
      output_(sizes_.activation, compute_threads),
      saved_(sizes_.saved_view, compute_threads) {
  LAMINA_CHECK(transformer_.scratch_bytes() + parameters_.bytes() + input_.bytes() + output_.bytes() + saved_.bytes() ==
                   sizes_.scratch_bytes,
               "{} bytes of scratch were planned", sizes_.scratch_bytes);
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

template StoredSizes stored_sizes<double>(const ModelShape&, std::int64_t, Recompute, int);
template StoredSizes stored_sizes<float>(const ModelShape&, std::int64_t, Recompute, int);
template StoredSizes stored_sizes<Bf16>(const ModelShape&, std::int64_t, Recompute, int);
template StoredSizes stored_sizes<Fp16>(const ModelShape&, std::int64_t, Recompute, int);
template class WideView<double>;
template class WideView<float>;
template class WideView<Bf16>;
template class WideView<Fp16>;
template class StoredTransformer<double>;
template class StoredTransformer<float>;
template class StoredTransformer<Bf16>;
template class StoredTransformer<Fp16>;

}  // namespace lamina
