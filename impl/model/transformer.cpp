#include "impl/model/transformer.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "impl/base/error.h"
#include "impl/kernels/cross_entropy.h"
#include "impl/kernels/gelu.h"
#include "impl/kernels/launch.h"
#include "impl/kernels/layer_norm.h"
#include "impl/kernels/matrix.h"
#include "impl/kernels/parallel.h"
#include "impl/kernels/rows.h"
#include "impl/kernels/softmax.h"

namespace lamina {
namespace {

using kernels::launch_rows;
using kernels::multiply;
using kernels::multiply_forward;
using kernels::multiply_input_gradient;
using kernels::multiply_weight_gradient;
using kernels::Transpose;

// Queries whose attention scores are held at once, for one head of one sequence.
constexpr std::int64_t kQueryBlock = 64;

// Where a layer's tensors begin in its flat buffer, in the order of unit_layout(). Pointer is Real* for gradients.
template <class Pointer>
struct LayerTensors {
  Pointer norm1_weight, norm1_bias, qkv_weight, qkv_bias, attention_weight, attention_bias;
  Pointer norm2_weight, norm2_bias, expand_weight, expand_bias, contract_weight, contract_bias;

  LayerTensors(Pointer begin, std::int64_t d) {
    const auto take = [&begin](std::int64_t elements) {
      const Pointer tensor = begin;
      begin += elements;
      return tensor;
    };
    norm1_weight = take(d);
    norm1_bias = take(d);
    qkv_weight = take(3 * d * d);
    qkv_bias = take(3 * d);
    attention_weight = take(d * d);
    attention_bias = take(d);
    norm2_weight = take(d);
    norm2_bias = take(d);
    expand_weight = take(4 * d * d);
    expand_bias = take(4 * d);
    contract_weight = take(4 * d * d);
    contract_bias = take(d);
  }
};

}  // namespace

template <class Real>
struct Transformer<Real>::Impl {
  std::int64_t hidden, heads, head_size, sequence, vocabulary, batch;
  std::int64_t rows;  // tokens of a micro-batch, b·s
  std::int64_t query_block;
  Recompute recompute;
  int threads;
  TransformerSizes sizes;

  std::vector<Real> wide1;            // [rows, 4d]: gradients of the MLP's inside; of queries, keys and values
  std::vector<Real> wide2;            // [rows, 4d]: the MLP's activation
  std::vector<Real> narrow1;          // [rows, d]: gradients of a norm's or the attention's output
  std::vector<Real> narrow2;          // [rows, d]: a norm's output
  std::vector<Real> probabilities;    // [threads, query_block, s], where the saved slot has no room for them
  std::vector<Real> score_gradients;  // [threads, query_block, s]
  std::vector<double> losses;         // [rows]

  // What forward leaves for backward, in one buffer: 9d + 4 numbers a token, and the probabilities.
  struct Saved {
    Real* qkv;        // [rows, 3d], queries, keys and values of each token
    Real* attention;  // [rows, d], the heads' outputs side by side
    Real* middle;     // [rows, d], the input plus the attention part
    Real* expanded;   // [rows, 4d], the MLP's inside before bias and GELU
    Real* mean1;      // [rows]
    Real* rstd1;
    Real* mean2;
    Real* rstd2;
    Real* probabilities;  // [b, heads, s, s], with Recompute::none only
  };

  Saved saved_at(Real* begin) const {
    const std::int64_t block = rows * hidden;
    Real* const statistics = begin + 9 * block;
    return {.qkv = begin,
            .attention = begin + 3 * block,
            .middle = begin + 4 * block,
            .expanded = begin + 5 * block,
            .mean1 = statistics,
            .rstd1 = statistics + rows,
            .mean2 = statistics + 2 * rows,
            .rstd2 = statistics + 3 * rows,
            .probabilities = recompute == Recompute::none ? statistics + 4 * rows : nullptr};
  }

  // One block of queries of one head: where its rows are, and how many keys the last of them sees.
  struct QueryBlock {
    std::int64_t first_query, queries, keys;
    std::int64_t qkv_offset;     // of the head's queries in row 0 of the sequence; keys follow d later, values 2d
    std::int64_t output_offset;  // of the head's output in row 0 of the sequence
    Real* probabilities;         // [queries, keys], rows `s` elements apart
    Real* score_gradients;       // the same
  };

  QueryBlock query_block_at(const Saved& saved, std::int64_t sample, std::int64_t head, std::int64_t first_query,
                            int worker) {
    const std::int64_t row = sample * sequence;
    const std::int64_t queries = std::min(query_block, sequence - first_query);
    const std::int64_t scratch = worker * query_block * sequence;
    Real* const held = saved.probabilities == nullptr
                           ? probabilities.data() + scratch
                           : saved.probabilities + ((sample * heads + head) * sequence + first_query) * sequence;
    return {.first_query = first_query,
            .queries = queries,
            .keys = first_query + queries,
            .qkv_offset = row * 3 * hidden + head * head_size,
            .output_offset = row * hidden + head * head_size,
            .probabilities = held,
            .score_gradients = score_gradients.data() + scratch};
  }

  // Calls f for every block of queries, each head's from the last to the first: the last sees all keys, so that a
  // gradient over keys begins with it. The heads are shared out over the threads.
  template <class F>
  void for_query_blocks(const Saved& saved, F f) {
    const std::int64_t last = (sequence - 1) / query_block * query_block;
    kernels::for_pieces(batch * heads, attention_threads(), [&](std::int64_t piece, int worker) {
      for (std::int64_t first = last; first >= 0; first -= query_block) {
        f(query_block_at(saved, piece / heads, piece % heads, first, worker));
      }
    });
  }

  // More than one only where the scores are worth it.
  int attention_threads() const {
    constexpr std::int64_t kLeastProducts = 1 << 20;
    return batch * sequence * sequence * hidden < kLeastProducts ? 1 : threads;
  }

  Real score_scale() const { return static_cast<Real>(1 / std::sqrt(static_cast<double>(head_size))); }

  // probabilities = softmax(queries · keysᵀ / sqrt(head_size))
  void attention_probabilities(const QueryBlock& block, const Real* qkv) {
    const Real* const queries = qkv + block.qkv_offset + block.first_query * 3 * hidden;
    const Real* const keys = qkv + block.qkv_offset + hidden;
    multiply(Transpose::no, Transpose::yes, block.queries, block.keys, head_size, score_scale(), queries, 3 * hidden,
             keys, 3 * hidden, Real(0), block.probabilities, sequence);
    launch_rows(kernels::CausalSoftmaxForward<Real>{.columns = block.keys,
                                                    .stride = sequence,
                                                    .first_visible = block.first_query + 1,
                                                    .scores = block.probabilities},
                block.queries, 1);
  }

  void attention_forward(const Saved& saved) {
    for_query_blocks(saved, [&](const QueryBlock& block) {
      attention_probabilities(block, saved.qkv);
      multiply(Transpose::no, Transpose::no, block.queries, head_size, block.keys, Real(1), block.probabilities,
               sequence, saved.qkv + block.qkv_offset + 2 * hidden, 3 * hidden, Real(0),
               saved.attention + block.output_offset + block.first_query * hidden, hidden);
    });
  }

  // From the gradient of the heads' outputs to that of queries, keys and values.
  void attention_backward(const Saved& saved, const Real* output_gradient, Real* qkv_gradient) {
    for_query_blocks(saved, [&](const QueryBlock& block) {
      if (saved.probabilities == nullptr) {
        attention_probabilities(block, saved.qkv);
      }
      attention_block_backward(block, saved.qkv, output_gradient, qkv_gradient);
    });
  }

  void attention_block_backward(const QueryBlock& block, const Real* qkv, const Real* output_gradient,
                                Real* qkv_gradient) {
    const std::int64_t wide = 3 * hidden;
    const std::int64_t query_offset = block.qkv_offset + block.first_query * wide;
    const std::int64_t key_offset = block.qkv_offset + hidden;
    const std::int64_t value_offset = block.qkv_offset + 2 * hidden;
    const Real* const dy = output_gradient + block.output_offset + block.first_query * hidden;
    Real* const ds = block.score_gradients;
    const Real add = block.keys == sequence ? Real(0) : Real(1);
    multiply(Transpose::yes, Transpose::no, block.keys, head_size, block.queries, Real(1), block.probabilities,
             sequence, dy, hidden, add, qkv_gradient + value_offset, wide);
    multiply(Transpose::no, Transpose::yes, block.queries, block.keys, head_size, Real(1), dy, hidden,
             qkv + value_offset, wide, Real(0), ds, sequence);
    launch_rows(kernels::SoftmaxBackward<Real>{.columns = block.keys,
                                               .probability_stride = sequence,
                                               .gradient_stride = sequence,
                                               .probabilities = block.probabilities,
                                               .gradients = ds},
                block.queries, 1);
    multiply(Transpose::no, Transpose::no, block.queries, head_size, block.keys, score_scale(), ds, sequence,
             qkv + key_offset, wide, Real(0), qkv_gradient + query_offset, wide);
    multiply(Transpose::yes, Transpose::no, block.keys, head_size, block.queries, score_scale(), ds, sequence,
             qkv + query_offset, wide, add, qkv_gradient + key_offset, wide);
  }

  void layer_norm(const Real* input, const Real* weight, const Real* bias, Real* output, Real* mean, Real* rstd) {
    launch_rows(kernels::LayerNormForward<Real>{.columns = hidden,
                                                .input = input,
                                                .weight = weight,
                                                .bias = bias,
                                                .output = output,
                                                .mean = mean,
                                                .rstd = rstd},
                rows, threads);
  }

  // Parameter gradients, then the input's gradient; writes the norm's output once more unless `output` is null.
  void layer_norm_backward(const Real* input, const Real* weight, const Real* bias, const Real* mean, const Real* rstd,
                           const Real* output_gradient, Real* weight_gradient, Real* bias_gradient, bool accumulate,
                           Real* input_gradient, bool add_to_input_gradient, Real* output) {
    const kernels::LayerNormParameterGradient<Real> parameter_gradient{.rows = rows,
                                                                       .columns = hidden,
                                                                       .input = input,
                                                                       .mean = mean,
                                                                       .rstd = rstd,
                                                                       .output_gradient = output_gradient,
                                                                       .weight_gradient = weight_gradient,
                                                                       .bias_gradient = bias_gradient,
                                                                       .accumulate_gradient = accumulate};
    launch_rows(parameter_gradient, parameter_gradient.tiles(), threads);
    launch_rows(kernels::LayerNormBackward<Real>{.columns = hidden,
                                                 .input = input,
                                                 .weight = weight,
                                                 .bias = bias,
                                                 .mean = mean,
                                                 .rstd = rstd,
                                                 .output_gradient = output_gradient,
                                                 .input_gradient = input_gradient,
                                                 .output = output,
                                                 .add_to_input_gradient = add_to_input_gradient},
                rows, threads);
  }

  // output = residual (or nothing) + bias + input · weightᵀ
  void linear(std::int64_t out, std::int64_t in, const Real* input, const Real* weight, const Real* bias,
              const Real* residual, Real* output) {
    launch_rows(kernels::ResidualBias<Real>{.columns = out, .residual = residual, .bias = bias, .output = output}, rows,
                threads);
    multiply_forward(rows, out, in, input, weight, Real(1), output, threads);
  }

  void bias_gradient(std::int64_t columns, const Real* output_gradient, Real* gradient, bool accumulate) {
    const kernels::ColumnSums<Real> sums{.rows = rows,
                                         .columns = columns,
                                         .input = output_gradient,
                                         .output = gradient,
                                         .accumulate_output = accumulate};
    launch_rows(sums, sums.tiles(), threads);
  }

  // The layer up to the inside of its MLP: all that backward needs.
  void forward_to_saved(const LayerTensors<const Real*>& p, const Real* input, const Saved& saved) {
    const std::int64_t d = hidden;
    layer_norm(input, p.norm1_weight, p.norm1_bias, narrow2.data(), saved.mean1, saved.rstd1);
    linear(3 * d, d, narrow2.data(), p.qkv_weight, p.qkv_bias, nullptr, saved.qkv);
    attention_forward(saved);
    linear(d, d, saved.attention, p.attention_weight, p.attention_bias, input, saved.middle);
    layer_norm(saved.middle, p.norm2_weight, p.norm2_bias, narrow2.data(), saved.mean2, saved.rstd2);
    multiply_forward(rows, 4 * d, d, narrow2.data(), p.expand_weight, Real(0), saved.expanded, threads);
  }

  void mlp_backward(const LayerTensors<const Real*>& p, const LayerTensors<Real*>& g, const Saved& saved, Real* dy,
                    bool accumulate) {
    const std::int64_t d = hidden;
    bias_gradient(d, dy, g.contract_bias, accumulate);
    multiply_input_gradient(rows, d, 4 * d, dy, p.contract_weight, wide1.data(), threads);
    launch_rows(kernels::BiasGeluBackward<Real>{.columns = 4 * d,
                                                .input = saved.expanded,
                                                .bias = p.expand_bias,
                                                .gradient = wide1.data(),
                                                .output = wide2.data()},
                rows, threads);
    multiply_weight_gradient(rows, d, 4 * d, dy, wide2.data(), accumulate, g.contract_weight, threads);
    bias_gradient(4 * d, wide1.data(), g.expand_bias, accumulate);
    multiply_input_gradient(rows, 4 * d, d, wide1.data(), p.expand_weight, narrow1.data(), threads);
    layer_norm_backward(saved.middle, p.norm2_weight, p.norm2_bias, saved.mean2, saved.rstd2, narrow1.data(),
                        g.norm2_weight, g.norm2_bias, accumulate, dy, true, narrow2.data());
    multiply_weight_gradient(rows, 4 * d, d, wide1.data(), narrow2.data(), accumulate, g.expand_weight, threads);
  }

  void attention_part_backward(const LayerTensors<const Real*>& p, const LayerTensors<Real*>& g, const Saved& saved,
                               const Real* input, Real* dy, bool accumulate) {
    const std::int64_t d = hidden;
    bias_gradient(d, dy, g.attention_bias, accumulate);
    multiply_weight_gradient(rows, d, d, dy, saved.attention, accumulate, g.attention_weight, threads);
    multiply_input_gradient(rows, d, d, dy, p.attention_weight, narrow1.data(), threads);
    attention_backward(saved, narrow1.data(), wide1.data());
    bias_gradient(3 * d, wide1.data(), g.qkv_bias, accumulate);
    multiply_input_gradient(rows, 3 * d, d, wide1.data(), p.qkv_weight, narrow1.data(), threads);
    layer_norm_backward(input, p.norm1_weight, p.norm1_bias, saved.mean1, saved.rstd1, narrow1.data(), g.norm1_weight,
                        g.norm1_bias, accumulate, dy, true, narrow2.data());
    multiply_weight_gradient(rows, 3 * d, d, wide1.data(), narrow2.data(), accumulate, g.qkv_weight, threads);
  }
};

TransformerSizes transformer_sizes(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute,
                                   int compute_threads) {
  const std::int64_t rows = micro_batch_size * shape.sequence;
  const std::int64_t scores = compute_threads * std::min(kQueryBlock, shape.sequence) * shape.sequence;
  const bool keeps_probabilities = recompute == Recompute::none;
  const std::int64_t kept = keeps_probabilities ? micro_batch_size * shape.heads * shape.sequence * shape.sequence : 0;
  return {.activation = rows * shape.hidden,
          .saved = rows * (9 * shape.hidden + 4) + kept,
          .head_workspace = rows * (shape.vocabulary + shape.hidden + 2),
          .wide = rows * 4 * shape.hidden,
          .narrow = rows * shape.hidden,
          .probabilities = keeps_probabilities ? 0 : scores,
          .score_gradients = scores,
          .losses = rows};
}

template <class Real>
Transformer<Real>::Transformer(const ModelShape& shape, std::int64_t micro_batch_size, Recompute recompute,
                               int compute_threads) {
  validate(shape);
  LAMINA_CHECK(micro_batch_size >= 1, "micro-batch of {} sequences", micro_batch_size);
  LAMINA_CHECK(compute_threads >= 1, "{} compute threads", compute_threads);
  const TransformerSizes sizes = transformer_sizes(shape, micro_batch_size, recompute, compute_threads);
  const std::int64_t rows = micro_batch_size * shape.sequence;
  const std::int64_t query_block = std::min(kQueryBlock, shape.sequence);
  const auto numbers = [](std::int64_t count) { return std::vector<Real>(static_cast<std::size_t>(count)); };
  impl_.reset(new Impl{.hidden = shape.hidden,
                       .heads = shape.heads,
                       .head_size = shape.hidden / shape.heads,
                       .sequence = shape.sequence,
                       .vocabulary = shape.vocabulary,
                       .batch = micro_batch_size,
                       .rows = rows,
                       .query_block = query_block,
                       .recompute = recompute,
                       .threads = compute_threads,
                       .sizes = sizes,
                       .wide1 = numbers(sizes.wide),
                       .wide2 = numbers(sizes.wide),
                       .narrow1 = numbers(sizes.narrow),
                       .narrow2 = numbers(sizes.narrow),
                       .probabilities = numbers(sizes.probabilities),
                       .score_gradients = numbers(sizes.score_gradients),
                       .losses = std::vector<double>(static_cast<std::size_t>(sizes.losses))});
}

template <class Real>
Transformer<Real>::~Transformer() = default;

template <class Real>
std::int64_t Transformer<Real>::activation_elements() const {
  return impl_->sizes.activation;
}

template <class Real>
std::int64_t Transformer<Real>::saved_elements() const {
  return impl_->sizes.saved;
}

template <class Real>
std::int64_t Transformer<Real>::head_workspace_elements() const {
  return impl_->sizes.head_workspace;
}

template <class Real>
std::int64_t Transformer<Real>::scratch_bytes() const {
  return scratch_bytes_of<Real>(impl_->sizes);
}

template <class Real>
void Transformer<Real>::embedding_forward(const Real* parameters, std::span<const std::int32_t> tokens, Real* output) {
  const Impl& m = *impl_;
  LAMINA_CHECK(std::ssize(tokens) == m.rows, "{} tokens for a micro-batch of {}", tokens.size(), m.rows);
  launch_rows(kernels::EmbeddingForward<Real>{.columns = m.hidden,
                                              .sequence = m.sequence,
                                              .tokens = tokens.data(),
                                              .token_table = parameters,
                                              .position_table = parameters + m.vocabulary * m.hidden,
                                              .output = output},
              m.rows, m.threads);
}

template <class Real>
void Transformer<Real>::embedding_backward(std::span<const std::int32_t> tokens, const Real* output_gradient,
                                           Real* gradient, bool accumulate) {
  const Impl& m = *impl_;
  LAMINA_CHECK(std::ssize(tokens) == m.rows, "{} tokens for a micro-batch of {}", tokens.size(), m.rows);
  if (!accumulate) {
    std::fill_n(gradient, (m.vocabulary + m.sequence) * m.hidden, Real(0));
  }
  const kernels::EmbeddingBackward<Real> backward{.rows = m.rows,
                                                  .columns = m.hidden,
                                                  .sequence = m.sequence,
                                                  .tokens = tokens.data(),
                                                  .output_gradient = output_gradient,
                                                  .token_gradient = gradient,
                                                  .position_gradient = gradient + m.vocabulary * m.hidden};
  launch_rows(backward, backward.tiles(), m.threads);
}

template <class Real>
void Transformer<Real>::layer_forward(const Real* parameters, const Real* input, Real* output, Real* saved) {
  Impl& m = *impl_;
  const LayerTensors<const Real*> p(parameters, m.hidden);
  const typename Impl::Saved kept = m.saved_at(saved);
  m.forward_to_saved(p, input, kept);
  launch_rows(
      kernels::BiasGeluForward<Real>{
          .columns = 4 * m.hidden, .input = kept.expanded, .bias = p.expand_bias, .output = m.wide2.data()},
      m.rows, m.threads);
  m.linear(m.hidden, 4 * m.hidden, m.wide2.data(), p.contract_weight, p.contract_bias, kept.middle, output);
}

template <class Real>
void Transformer<Real>::layer_backward(const Real* parameters, const Real* input, Real* saved,
                                       Real* activation_gradient, Real* gradient, bool accumulate) {
  Impl& m = *impl_;
  const LayerTensors<const Real*> p(parameters, m.hidden);
  const LayerTensors<Real*> g(gradient, m.hidden);
  const typename Impl::Saved kept = m.saved_at(saved);
  if (m.recompute == Recompute::full) {
    m.forward_to_saved(p, input, kept);
  }
  m.mlp_backward(p, g, kept, activation_gradient, accumulate);
  m.attention_part_backward(p, g, kept, input, activation_gradient, accumulate);
}

template <class Real>
double Transformer<Real>::head(const Real* parameters, const Real* input, std::span<const std::int32_t> targets,
                               double loss_scale, Real* activation_gradient, Real* gradient, bool accumulate,
                               Real* workspace) {
  Impl& m = *impl_;
  LAMINA_CHECK(std::ssize(targets) == m.rows, "{} targets for a micro-batch of {}", targets.size(), m.rows);
  const std::int64_t d = m.hidden;
  Real* const logits = workspace;                       // [rows, vocabulary], then their gradients
  Real* const normal = logits + m.rows * m.vocabulary;  // [rows, d]
  Real* const mean = normal + m.rows * d;
  Real* const rstd = mean + m.rows;
  const Real* const norm_weight = parameters;
  const Real* const norm_bias = parameters + d;
  const Real* const weight = parameters + 2 * d;
  m.layer_norm(input, norm_weight, norm_bias, normal, mean, rstd);
  multiply_forward(m.rows, m.vocabulary, d, normal, weight, Real(0), logits, m.threads);
  launch_rows(kernels::CrossEntropy<Real>{.columns = m.vocabulary,
                                          .targets = targets.data(),
                                          .gradient_scale = static_cast<Real>(loss_scale),
                                          .logits = logits,
                                          .losses = m.losses.data()},
              m.rows, m.threads);
  multiply_weight_gradient(m.rows, m.vocabulary, d, logits, normal, accumulate, gradient + 2 * d, m.threads);
  multiply_input_gradient(m.rows, m.vocabulary, d, logits, weight, activation_gradient, m.threads);
  m.layer_norm_backward(input, norm_weight, norm_bias, mean, rstd, activation_gradient, gradient, gradient + d,
                        accumulate, activation_gradient, false, nullptr);
  double loss = 0;
  for (const double row_loss : m.losses) {
    loss += row_loss;
  }
  return loss;
}

template class Transformer<float>;
template class Transformer<double>;

void set_compute_threads(int threads) {
  LAMINA_CHECK(threads >= 1, "{} compute threads", threads);
  // kernels::multiply shares products out over the compute threads itself, whatever their number.
  openblas_set_num_threads(1);
}

BlasInfo blas_info() { return {.name = openblas_get_config(), .core = openblas_get_corename()}; }

}  // namespace lamina
