// The Transformer on buffers of another type than it computes in: converted at the boundary of each op into scratch
// that exists from the start. Where the types are the same the buffers themselves are used, and there is no scratch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "impl/base/real.h"
#include "impl/model/transformer.h"

namespace lamina {

// A buffer's numbers as the arithmetic takes them.
template <class Stored>
class WideView {
 public:
  WideView(std::int64_t most_elements, int threads)
      : scratch_(static_cast<std::size_t>(kConverts ? most_elements : 0)), threads_(threads) {}

  Wide<Stored>* read(const Stored* buffer, std::int64_t elements);  // to be read, or changed and then kept
  Wide<Stored>* room(Stored* buffer);                               // to be written whole
  void keep(Stored* buffer, std::int64_t elements);                 // what was written or changed
  std::int64_t bytes() const { return bytes_for(std::ssize(scratch_)); }
  static std::int64_t bytes_for(std::int64_t most_elements) {
    return kConverts ? most_elements * static_cast<std::int64_t>(sizeof(Wide<Stored>)) : 0;
  }

 private:
  static constexpr bool kConverts = !std::is_same_v<Stored, Wide<Stored>>;
  std::vector<Wide<Stored>> scratch_;
  int threads_;
};

// How large a StoredTransformer's buffers are, without making one.
struct StoredSizes {
  std::int64_t activation, saved, head_workspace;  // elements of slots: see the class
  std::int64_t parameters_view, saved_view;        // elements of its views of a unit's parameters and of `saved`
  std::int64_t scratch_bytes;                      // all that the object holds
};
template <class Stored>
StoredSizes stored_sizes(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute,
                         int compute_threads);

// As Transformer<Wide<Stored>>, with activations and parameters in Stored and gradients of parameters in Wide<Stored>.
template <class Stored>
class StoredTransformer {
 public:
  using Real = Wide<Stored>;

  StoredTransformer(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute, int compute_threads);

  std::int64_t activation_elements() const { return sizes_.activation; }
  // What has to be kept for an op outside: nothing where conversion gives it scratch and no other op reads it.
  std::int64_t saved_elements() const { return sizes_.saved; }
  std::int64_t head_workspace_elements() const { return sizes_.head_workspace; }
  std::int64_t scratch_bytes() const { return sizes_.scratch_bytes; }

  // A unit's parameters are converted once for all its ops that follow each other; tell when they may have changed.
  void parameters_change() { converted_.reset(); }

  void embedding_forward(const Stored* parameters, std::span<const std::int32_t> tokens, Stored* output);
  void embedding_backward(std::span<const std::int32_t> tokens, const Stored* output_gradient, Real* gradient,
                          bool accumulate);
  void layer_forward(Unit layer, const Stored* parameters, const Stored* input, Stored* output, Stored* saved);
  void layer_backward(Unit layer, const Stored* parameters, const Stored* input, Stored* saved,
                      Stored* activation_gradient, Real* gradient, bool accumulate);
  double head(const Stored* parameters, const Stored* input, std::span<const std::int32_t> targets, double loss_scale,
              Stored* activation_gradient, Real* gradient, bool accumulate, Stored* workspace);

 private:
  const Real* parameters_of(Unit unit, const Stored* parameters);

  ModelShape shape_;
  StoredSizes sizes_;
  Transformer<Real> transformer_;
  WideView<Stored> parameters_, input_, output_, saved_;
  std::optional<Unit> converted_;  // whose parameters parameters_ holds
};

}  // namespace lamina
