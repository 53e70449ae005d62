// The closed forms of a training step: what it computes, sends, waits for and stores. Each form stands once, with its
// condition of exactness; README.md of this folder derives them. Embedding, head, biases, norms, optimizer time and
// latency are left out; attention is counted in full (not halved for the causal mask).
//
// Symbols as in the README: D data, L pipeline, A tensor degree; N layers, K = ceil(N/L) layers a rank, d hidden,
// s sequence, b sequences a micro-batch, m micro-batches a step and data rank, n groups, v chunks a rank.
// Times in seconds, sizes in bytes, both in double: 10^14 parameters on 10^6 devices stay far inside its range.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "impl/plan/model_shape.h"
#include "impl/plan/plan.h"

namespace lamina::analysis {

// In which order a rank computes, and who owns which layer.
enum class Order : std::uint8_t {
  depth_first,               // one stage, one micro-batch after the other: n = m
  layered,                   // one stage, all micro-batches through a layer: n = 1
  hybrid,                    // one stage, n groups run layered
  gpipe,                     // consecutive layers, all forward, then all backward
  one_forward_one_backward,  // consecutive layers, 1F1B
  interleaved,               // v chunks of consecutive layers a rank, 1F1B in groups of L micro-batches
  modular,                   // layer i on rank i mod L, n groups run layered
};
std::string_view name_of(Order order);  // "data_parallel", "layered_accumulation", "gpipe", "1f1b", …
constexpr bool is_pipeline(Order order) { return order >= Order::gpipe; }

// What the forms need to know of a plan.
struct StepPlan {
  Order order = Order::depth_first;
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t micro_batch = 1;    // b
  std::int64_t micro_batches = 1;  // m
  std::int64_t groups = 1;         // n, read for hybrid and modular only
  std::int64_t chunks = 1;         // v, read for interleaved only
  int zero_stage = 0;
  bool keep_full_gradient = false;  // ZeRO-3 in groups: reduce once a step, not once a group
  Recompute recompute = Recompute::full;
  bool sequence_parallel = true;  // activations split over the tensor group
  bool operator==(const StepPlan&) const = default;

  std::int64_t devices() const { return data * pipeline * tensor; }
  std::int64_t batch() const { return data * micro_batches * micro_batch; }  // sequences a step
  std::int64_t group_count() const;  // n: m for depth-first, 1 for layered, `groups` for hybrid and modular
};

// Rates of one device and of the links that its groups cross, bytes per second and direction.
struct Rates {
  double flops_per_s = 0;
  double tensor_bytes_per_s = 0;   // inside a node
  double network_bytes_per_s = 0;  // between nodes: data-parallel and pipeline groups
  double share_of_peak = 1;        // flops_per_s over the device's peak, for utilisation
};

// Bytes an element takes on the wire.
struct WireBytes {
  double activation = 2;  // w
  double parameter = 2;   // w_g, of a gathered parameter
  double gradient = 2;    // w_r, of a reduced gradient; also its bytes in memory
};

// ---- Work and single collectives -----------------------------------------------------------------------------------

double layer_parameters(const ModelShape& model);  // 12 d²
double total_parameters(const ModelShape& model);  // 12 d² N

// FLOPs of one layer's forward pass for one micro-batch on one tensor rank: (24 d² + 4 s d) b s / A.
double layer_forward_flops(const ModelShape& model, double micro_batch, double tensor);

// FLOPs of a step without and with recomputation, all ranks together: 3 or 4 forwards of N layers.
double model_step_flops(const ModelShape& model, double batch);
double hardware_step_flops(const ModelShape& model, double batch, Recompute recompute);

// Bytes of `elements` padded to a multiple of `ranks`.
double padded_bytes(double elements, double bytes_per_element, double ranks);

// A ring gather (or reduce-scatter) of V bytes over n ranks takes (n − 1)/n · V/β; an all-reduce twice that. Exact for
// a ring at zero latency, V a multiple of n.
double ring_gather_time(double bytes, double ranks, double bytes_per_s);
double ring_all_reduce_time(double bytes, double ranks, double bytes_per_s);

// ---- One layer, one micro-batch ------------------------------------------------------------------------------------

struct LayerTimes {
  double forward_s = 0;   // t_f: forward with its two tensor all-reduces
  double backward_s = 0;  // t_b: backward with recomputation and their tensor all-reduces (4; 2 without recomputation)
  double boundary_s = 0;  // c: one boundary transfer, one direction; 0 without a pipeline
  double gather_s = 0;    // g: data-parallel gather of one layer's parameters
  double reduce_s = 0;    // r: reduce-scatter of one layer's gradient
  double all_reduce_s = 0;                                  // a: all-reduce of one layer's gradient
  double both_s() const { return forward_s + backward_s; }  // T
  bool operator==(const LayerTimes&) const = default;
};

// The two halves, so that a search can keep the first while the data-parallel degree varies. Selective recomputation
// repeats the attention product alone (4 s d b s / A FLOPs) and no collective.
LayerTimes compute_times(const ModelShape& model, double micro_batch, double tensor, bool has_pipeline,
                         Recompute recompute, const Rates& rates, const WireBytes& wire);
void set_data_times(LayerTimes& times, const ModelShape& model, double tensor, double data, const Rates& rates,
                    const WireBytes& wire);
LayerTimes layer_times(const ModelShape& model, const StepPlan& plan, const Rates& rates, const WireBytes& wire);

// ---- Time of a step ------------------------------------------------------------------------------------------------

// Layers over ranks: K = ceil(N/L), q = N − (K − 1) L layers in the last round (q = L when L divides N).
struct Stages {
  double layers = 1;       // N
  double ranks = 1;        // L
  double layers_each = 1;  // K
  double last_round = 1;   // q
};
Stages stages_of(std::int64_t layers, std::int64_t ranks);

// Compute of a step without transfers, T = t_f + t_b:
//
//   one stage    m K T                                                  exact
//   gpipe, 1f1b  (N + (m − 1) K) T; = (m + L − 1) K T when L divides N   exact; 1f1b, L not dividing N: upper bound
//   interleaved  (m + (L − 1)/v) K T, m ≥ L in groups of at least L      exact
//                (K/v) ((v − 1) L + m + L − 1) T, m < L                  exact
//   modular      n ((K − 1) max(m/n, L) + m/n + q − 1) T                 exact
double compute_time(const StepPlan& plan, const Stages& stages, double both_s);

// The same with boundary transfers of c a direction, each direction on its own stream:
//
//   modular      per direction and group of u = m/n, p = max(t, c):
//                (K − 1) max(u p, L (t + c)) + (u − 1) p + t + (q − 1)(t + c)
//   gpipe        per direction: (m − 1) max(K t, c) + N t + (L − 1) c
//   1f1b         adds 2c (L − 1 + ⌊(m − 1)(L − 1)/L⌋); exact while c ≤ K t_f, a lower bound beyond
//   interleaved  in groups of L adds 2c (v L − 1) while c ≤ (K/v) t_f
double pipeline_time(const StepPlan& plan, const Stages& stages, const LayerTimes& times);

// Data-parallel time that compute cannot hide, on top of pipeline_time. One FIFO stream for gathers and reductions,
// two parameter and two gradient slots, resident layers reused. T_f, T_b: compute of one layer's visit. In a modular
// pipeline the boundary transfers of a visit, (m/n) c, share the link and are added to what T_f and T_b must hide:
// within 3 % for m ≥ 2L and c ≤ t_f/2, up to 17 % too low at m = L. Ordinary pipelines cross a boundary once a stage,
// not once a layer: nothing is added there.
// ZeRO-3 in gpipe and 1f1b is an upper bound for the whole step (exposure stretches fill and drain too).
double exposed_data_time(const StepPlan& plan, const Stages& stages, const LayerTimes& times);

// A step taken apart: total = work + bubble + boundary + exposed_data.
struct StepTime {
  double total_s = 0;
  double work_s = 0;          // m N/L T: the compute of an average rank, tensor collectives included
  double bubble_s = 0;        // compute_time − work
  double boundary_s = 0;      // pipeline_time − compute_time
  double exposed_data_s = 0;  // see exposed_data_time
};
StepTime step_time(const StepPlan& plan, const Stages& stages, const LayerTimes& times);

// Why the forms do not cover a plan, or nothing when they do: interleaved with ZeRO above 0, ordinary pipelines with
// ZeRO-2, a transfer longer than a chunk's forward pass, a last interleaved group shorter than L, groups that do not
// divide m. `times` decides the transfer's case.
std::optional<std::string_view> not_covered(const StepPlan& plan, const Stages& stages, const LayerTimes& times);

// ---- Traffic -------------------------------------------------------------------------------------------------------

// Layer gathers and layer reductions of one rank and step; an all-reduce counts as two reductions. `layers` is K, the
// rank's own; `resident` is P, the gathered layers kept across a turn (last layers from forward to backward, first
// layers from one group to the next); `rank` is the pipeline rank, which matters in 1F1B only.
//
//   ZeRO-0  0, 2K
//   ZeRO-1  K, K
//   ZeRO-2  K, nK (K with the full gradient kept)
//   ZeRO-3  2nK − P (2n − 1), nK (K with the full gradient kept);
//           gpipe 2mK − P, mK;  1f1b 2mK − P max(1, 2(m − x) − 1), mK;  x = min(m, L − 1 − rank)
//           K where all of them stay (P ≥ K)
//
// A rank of one layer takes consecutive micro-batches through it in one visit: once in place of m times in gpipe,
// max(1, m − x) times in 1f1b.
struct DataTraffic {
  double gathers = 0;
  double reductions = 0;
};
inline constexpr std::int64_t kGatheredLayers = 2;  // P where nothing else is said, as in the forms of time and memory
DataTraffic data_traffic(const StepPlan& plan, std::int64_t layers, std::int64_t resident, std::int64_t rank);

// Why that count is not known, or nothing where it is: interleaved with ZeRO-3, or with ZeRO-2 in chunks of one layer.
std::optional<std::string_view> traffic_not_covered(const StepPlan& plan, std::int64_t layers);

// (gathers w_g + reductions w_r) (D − 1)/D · 12 d²/A, each layer padded to a multiple of D.
double data_bytes_sent(const DataTraffic& traffic, const ModelShape& model, const StepPlan& plan,
                       const WireBytes& wire);

// Boundaries a micro-batch crosses in one direction: L − 1, interleaved v L − 1, modular N − 1, none at L = 1.
double boundaries_crossed(const StepPlan& plan, std::int64_t layers);

// ---- When a layered step is free of its network --------------------------------------------------------------------

// Tokens a rank and step, m b s, from which a layered step hides all data-parallel traffic but the first gather and
// the last reduction:
//   ZeRO-0: w F/(3β) with full recomputation, w F/(2β) without;
//   ZeRO-1, 2: max(w_g F/(2β), w_r F/(6β)) with, max(w_g F/(2β), w_r F/(4β)) without;
//   ZeRO-3: max(w_g F/(2β), (w_g + w_r) F/(6β)) with, max(w_g F/(2β), (w_g + w_r) F/(4β)) without; times (D − 1)/D.
// Depth-first needs b s alone to reach it. Attention and tensor collectives, which only help, are left out.
double tokens_to_hide_network(int zero_stage, Recompute recompute, double data, const Rates& rates,
                              const WireBytes& wire);
// The same solved for β: the bytes per second from which `tokens` a visit hide the traffic.
double bandwidth_to_hide_network(int zero_stage, Recompute recompute, double data, double flops_per_s, double tokens,
                                 const WireBytes& wire);

// ---- Memory of a rank ----------------------------------------------------------------------------------------------

struct MemoryBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double buffers = 0;      // gathered layers, layer gradients, the full gradient where it is kept
  double checkpoints = 0;  // what is kept per layer and micro-batch from forward to backward
  double working_set = 0;  // the layer in flight
  double total() const { return parameters + gradients + optimizer + buffers + checkpoints + working_set; }
};

// State a parameter: 2 + w_r + 12 bytes, the optimizer over D from ZeRO-1, the gradient from ZeRO-2, the parameter at
// ZeRO-3; times 12 d² K/A. Buffers: ZeRO-3 two gathered layers, ZeRO-2 and 3 two layers' gradients, w_r 12 d² K/A
// more where the full gradient is kept. Checkpoints: layers_kept() times b s d w (divided by A with sequence
// parallelism); without full recomputation a layer's whole working set is kept instead (without its attention part for
// selective). Working set b s (34 d + 5 heads s)/A with sequence parallelism, b s (10 d + (24 d + 5 heads s)/A)
// without: an upper bound, dropout masks included. `rank` is the pipeline rank; rank 0 holds most.
MemoryBytes memory_of(const StepPlan& plan, const ModelShape& model, const WireBytes& wire, std::int64_t rank = 0);

// Layer checkpoints alive at the peak: depth-first K, layered m K, groups (m/n) K, gpipe m K, 1f1b min(m, L − rank) K,
// interleaved min(m v, 2 (L − 1 − rank) + (v − 1) G + 1) K/v with G the largest of ⌊m/L⌋ groups (all m where m < L).
double layers_kept(const StepPlan& plan, const Stages& stages, std::int64_t rank);

// Bytes of one layer checkpoint of one micro-batch: b s d w, over A with sequence parallelism.
double checkpoint_bytes(const StepPlan& plan, const ModelShape& model, const WireBytes& wire);

// ---- Checks --------------------------------------------------------------------------------------------------------

// Sizes of at least 1, heads that divide hidden, at most 10^18 parameters and 10^6 layers. The vocabulary is not looked
// at: the forms leave it out. Throws UsageError with one line.
void validate_for_forms(const ModelShape& model);

// Rates above 0 and finite. Throws UsageError naming the rate.
void validate(const Rates& rates);

}  // namespace lamina::analysis
