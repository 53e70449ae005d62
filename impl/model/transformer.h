// The GPT's units, forward and backward, on plain buffers. No allocation after construction; nothing here knows of
// schedules, ranks or communication.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "impl/plan/model_shape.h"
#include "impl/plan/plan.h"

namespace lamina {

// How large a Transformer's buffers are, in elements, without making one. It allocates its scratch by these.
struct TransformerSizes {
  std::int64_t activation, saved, head_workspace;                     // of slots: see the class
  std::int64_t wide, narrow, probabilities, score_gradients, losses;  // of its scratch: two wide, two narrow, one each
};
TransformerSizes transformer_sizes(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute,
                                   int compute_threads);
template <class Real>
std::int64_t scratch_bytes_of(const TransformerSizes& sizes) {
  return (2 * (sizes.wide + sizes.narrow) + sizes.probabilities + sizes.score_gradients) *
             static_cast<std::int64_t>(sizeof(Real)) +
         sizes.losses * static_cast<std::int64_t>(sizeof(double));
}

// Activations are [b, s, d] row-major: b sequences of a micro-batch, s tokens each, d hidden. A unit's parameters and
// gradient are flat buffers in the order of unit_layout(). Real is float or double.
//
// One object serves one compute stream: its scratch is shared by all its calls.
template <class Real>
class Transformer {
 public:
  // compute_threads: threads that loops and products are shared out over (kernels/parallel.h).
  Transformer(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute, int compute_threads);
  ~Transformer();
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  std::int64_t activation_elements() const;  // b·s·d
  // Elements of a layer's `saved` slot: what forward leaves for backward. With Recompute::none this includes the
  // attention probabilities (b·heads·s·s); selective leaves them out and computes them again; full has the same size
  // as selective, and backward fills it itself from the checkpoint.
  std::int64_t saved_elements() const;
  std::int64_t head_workspace_elements() const;  // the head's working set (logits included)
  std::int64_t scratch_bytes() const;            // held by this object

  // output [b, s, d] = wte[token] + wpe[position].
  void embedding_forward(const Real* parameters, std::span<const std::int32_t> tokens, Real* output);
  // gradient (+)= scatter of output_gradient; accumulate = false replaces the whole gradient buffer.
  void embedding_backward(std::span<const std::int32_t> tokens, const Real* output_gradient, Real* gradient,
                          bool accumulate);

  // saved is written in every mode (with full recomputation it is scratch).
  void layer_forward(const Real* parameters, const Real* input, Real* output, Real* saved);
  // activation_gradient holds the gradient of the output on entry and of the input on return.
  void layer_backward(const Real* parameters, const Real* input, Real* saved, Real* activation_gradient, Real* gradient,
                      bool accumulate);

  // Final norm, logits, cross-entropy and their backward. Returns the cross-entropy summed over counted targets
  // (target >= 0; -1 is not counted). activation_gradient receives d(loss)/d(input) where the loss is that sum times
  // loss_scale (the caller passes 1 / counted targets of the whole step).
  double head(const Real* parameters, const Real* input, std::span<const std::int32_t> targets, double loss_scale,
              Real* activation_gradient, Real* gradient, bool accumulate, Real* workspace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Makes the BLAS compute on the threads that call it, which share the products out; for the whole process, once before
// compute begins.
void set_compute_threads(int threads);

struct BlasInfo {
  std::string name;  // "OpenBLAS 0.3.21 …"
  std::string core;  // "Haswell"
};
BlasInfo blas_info();

}  // namespace lamina
