#include "impl/analysis/forms.h"

#include <algorithm>
#include <cmath>

#include "impl/base/error.h"

namespace lamina::analysis {
namespace {

double positive_part(double x) { return std::max(0.0, x); }

// Micro-batches that one visit of a layer takes: what a gather or a reduction can hide behind.
double visit_micro_batches(const StepPlan& plan, const Stages& stages) {
  const double group = static_cast<double>(plan.micro_batches) / static_cast<double>(plan.group_count());
  switch (plan.order) {
    case Order::depth_first:
    case Order::layered:
    case Order::hybrid:
      return group;
    case Order::modular:
      return std::max(group, stages.ranks);
    case Order::gpipe:
    case Order::one_forward_one_backward:
    case Order::interleaved:
      return 1;
  }
  return 1;
}

// What the exposure forms are made of. `shared` is the boundary traffic of a visit on the same link.
struct Exposure {
  double layers;    // K
  double groups;    // n
  double gather;    // g
  double reduce;    // r
  double forward;   // T_f − shared
  double backward;  // T_b − shared
};

// a + (K − 1)(a − T_b)⁺
double exposed_all_reduce(double layers, double all_reduce, double backward) {
  return all_reduce + (layers - 1) * positive_part(all_reduce - backward);
}

// Interleaved in groups of L: a chunk's first K/v − 1 layers hide behind one backward each, a chunk behind L of them:
// a + (K/v − 1)(a − t_b)⁺ + (K/v)(v − 1)(a − L t_b)⁺
double exposed_all_reduce_interleaved(const StepPlan& plan, const Stages& stages, const LayerTimes& times) {
  const double chunks = static_cast<double>(plan.chunks);
  const double chunk = stages.layers_each / chunks;
  const double a = times.all_reduce_s;
  return a + (chunk - 1) * positive_part(a - times.backward_s) +
         chunk * (chunks - 1) * positive_part(a - stages.ranks * times.backward_s);
}

// ZeRO-1: g + (K − 1)(g − T_f)⁺ + r + (K − 1)(r − T_b)⁺
double exposed_zero_1(const Exposure& e) {
  return e.gather + (e.layers - 1) * positive_part(e.gather - e.forward) + e.reduce +
         (e.layers - 1) * positive_part(e.reduce - e.backward);
}

// One layer a rank: it stays gathered, and each group's reduction hides behind the next group's compute.
double exposed_one_layer(const Exposure& e) {
  return e.gather + e.reduce + (e.groups - 1) * positive_part(e.reduce - e.forward - e.backward);
}

// ZeRO-2, K ≥ 2:
// g + (K − 1)(g − T_f)⁺ + n (K − 2)(r − T_b)⁺ + (n − 1)(2 (r − T_b)⁺ − K T_f)⁺ + (r − T_b)⁺ + r
double exposed_zero_2(const Exposure& e) {
  if (e.layers < 2) {
    return exposed_one_layer(e);
  }
  const double reduce_over = positive_part(e.reduce - e.backward);
  return e.gather + (e.layers - 1) * positive_part(e.gather - e.forward) + e.groups * (e.layers - 2) * reduce_over +
         (e.groups - 1) * positive_part(2 * reduce_over - e.layers * e.forward) + reduce_over + e.reduce;
}

// Between two groups of ZeRO-3 the last reductions of one push the first gathers of the next:
// (((r − T_b)⁺ + r − T_f)⁺ + g − T_f)⁺
double exposed_turn(const Exposure& e) {
  const double reductions_left = positive_part(e.reduce - e.backward) + e.reduce;
  return positive_part(positive_part(reductions_left - e.forward) + e.gather - e.forward);
}

// ZeRO-3, K ≥ 3 (fewer layers all stay gathered: ZeRO-2, or ZeRO-1 where the full gradient is kept):
// g + (K − 1)(g − T_f)⁺ + (K − 2)(g + r − T_b)⁺ + (r − T_b)⁺ + r, and for each further group
// turn + (K − 3)(g − T_f)⁺ + (K − 2)(g + r − T_b)⁺, or (K − 2)[(g − T_f)⁺ + (g − T_b)⁺] with the full gradient kept.
double exposed_zero_3(const Exposure& e, bool keep_full_gradient) {
  if (e.layers <= 2) {
    return keep_full_gradient ? exposed_zero_1(e) : exposed_zero_2(e);
  }
  const double gather_over = positive_part(e.gather - e.forward);
  const double both_over = positive_part(e.gather + e.reduce - e.backward);
  const double one_group = e.gather + (e.layers - 1) * gather_over + (e.layers - 2) * both_over +
                           positive_part(e.reduce - e.backward) + e.reduce;
  const double further = keep_full_gradient
                             ? (e.layers - 2) * (gather_over + positive_part(e.gather - e.backward))
                             : exposed_turn(e) + (e.layers - 3) * gather_over + (e.layers - 2) * both_over;
  return one_group + (e.groups - 1) * further;
}

// ZeRO-3 in gpipe and 1f1b, upper bound of the whole step without boundary transfers:
// (m + L − 1) K (max(t_f, g) + max(t_b, g + r)) + g + r, 1f1b (m − 1) turns more.
double bounded_zero_3_step(const StepPlan& plan, const Stages& stages, const LayerTimes& times) {
  const double g = times.gather_s;
  const double r = times.reduce_s;
  const double m = static_cast<double>(plan.micro_batches);
  const double slowest = std::max(times.forward_s, g) + std::max(times.backward_s, g + r);
  const double bound = compute_time(plan, stages, slowest) + g + r;
  if (plan.order == Order::gpipe) {
    return bound;
  }
  return bound + (m - 1) * exposed_turn({.layers = stages.layers_each,
                                         .groups = m,
                                         .gather = g,
                                         .reduce = r,
                                         .forward = times.forward_s,
                                         .backward = times.backward_s});
}

double recomputed_share_of_forward(const ModelShape& model, Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return 0;
    case Recompute::selective: {
      const double attention = 4 * static_cast<double>(model.sequence);
      return attention / (24 * static_cast<double>(model.hidden) + attention);
    }
    case Recompute::full:
      return 1;
  }
  return 0;
}

}  // namespace

std::string_view name_of(Order order) {
  switch (order) {
    case Order::depth_first:
      return "data_parallel";
    case Order::layered:
      return "layered_accumulation";
    case Order::hybrid:
      return "hybrid_accumulation";
    case Order::gpipe:
      return "gpipe";
    case Order::one_forward_one_backward:
      return "1f1b";
    case Order::interleaved:
      return "interleaved_1f1b";
    case Order::modular:
      return "modular_pipeline";
  }
  return "?";
}

std::int64_t StepPlan::group_count() const {
  switch (order) {
    case Order::hybrid:
    case Order::modular:
      return groups;
    case Order::layered:
      return 1;
    default:
      return micro_batches;
  }
}

double layer_parameters(const ModelShape& model) {
  const double d = static_cast<double>(model.hidden);
  return 12 * d * d;
}

double total_parameters(const ModelShape& model) { return layer_parameters(model) * static_cast<double>(model.layers); }

double layer_forward_flops(const ModelShape& model, double micro_batch, double tensor) {
  const double d = static_cast<double>(model.hidden);
  const double s = static_cast<double>(model.sequence);
  return (24 * d * d + 4 * s * d) * micro_batch * s / tensor;
}

double model_step_flops(const ModelShape& model, double batch) {
  return 3 * static_cast<double>(model.layers) * layer_forward_flops(model, batch, 1);
}

double hardware_step_flops(const ModelShape& model, double batch, Recompute recompute) {
  return model_step_flops(model, batch) * (3 + recomputed_share_of_forward(model, recompute)) / 3;
}

double padded_bytes(double elements, double bytes_per_element, double ranks) {
  return std::ceil(elements / ranks) * ranks * bytes_per_element;
}

double ring_gather_time(double bytes, double ranks, double bytes_per_s) {
  return (ranks - 1) / ranks * bytes / bytes_per_s;
}

double ring_all_reduce_time(double bytes, double ranks, double bytes_per_s) {
  return 2 * ring_gather_time(bytes, ranks, bytes_per_s);
}

LayerTimes compute_times(const ModelShape& model, double micro_batch, double tensor, bool has_pipeline,
                         Recompute recompute, const Rates& rates, const WireBytes& wire) {
  const double forward = layer_forward_flops(model, micro_batch, tensor) / rates.flops_per_s;
  const double activations = micro_batch * static_cast<double>(model.sequence) * static_cast<double>(model.hidden);
  const double all_reduce =
      ring_all_reduce_time(padded_bytes(activations, wire.activation, tensor), tensor, rates.tensor_bytes_per_s);
  const double recomputed = recomputed_share_of_forward(model, recompute) * forward;
  LayerTimes times;
  times.forward_s = forward + 2 * all_reduce;
  times.backward_s = 2 * forward + recomputed + (recompute == Recompute::full ? 4 : 2) * all_reduce;
  times.boundary_s = has_pipeline ? activations * wire.activation / (tensor * rates.network_bytes_per_s) : 0;
  return times;
}

void set_data_times(LayerTimes& times, const ModelShape& model, double tensor, double data, const Rates& rates,
                    const WireBytes& wire) {
  const double elements = layer_parameters(model) / tensor;
  const double beta = rates.network_bytes_per_s;
  times.gather_s = ring_gather_time(padded_bytes(elements, wire.parameter, data), data, beta);
  times.reduce_s = ring_gather_time(padded_bytes(elements, wire.gradient, data), data, beta);
  times.all_reduce_s = 2 * times.reduce_s;
}

LayerTimes layer_times(const ModelShape& model, const StepPlan& plan, const Rates& rates, const WireBytes& wire) {
  const double tensor = static_cast<double>(plan.tensor);
  LayerTimes times = compute_times(model, static_cast<double>(plan.micro_batch), tensor, plan.pipeline > 1,
                                   plan.recompute, rates, wire);
  set_data_times(times, model, tensor, static_cast<double>(plan.data), rates, wire);
  return times;
}

Stages stages_of(std::int64_t layers, std::int64_t ranks) {
  const std::int64_t each = (layers + ranks - 1) / ranks;
  return {.layers = static_cast<double>(layers),
          .ranks = static_cast<double>(ranks),
          .layers_each = static_cast<double>(each),
          .last_round = static_cast<double>(layers - (each - 1) * ranks)};
}

double compute_time(const StepPlan& plan, const Stages& stages, double both_s) {
  const double m = static_cast<double>(plan.micro_batches);
  switch (plan.order) {
    case Order::depth_first:
    case Order::layered:
    case Order::hybrid:
      return m * stages.layers * both_s;
    case Order::gpipe:
    case Order::one_forward_one_backward:
      return (stages.layers + (m - 1) * stages.layers_each) * both_s;
    case Order::interleaved: {
      const double v = static_cast<double>(plan.chunks);
      if (m >= stages.ranks) {
        return (m + (stages.ranks - 1) / v) * stages.layers_each * both_s;
      }
      return stages.layers_each / v * ((v - 1) * stages.ranks + m + stages.ranks - 1) * both_s;
    }
    case Order::modular: {
      const double n = static_cast<double>(plan.groups);
      const double group = m / n;
      return n * ((stages.layers_each - 1) * std::max(group, stages.ranks) + group + stages.last_round - 1) * both_s;
    }
  }
  return 0;
}

double pipeline_time(const StepPlan& plan, const Stages& stages, const LayerTimes& times) {
  const double m = static_cast<double>(plan.micro_batches);
  const double ranks = stages.ranks;
  const double c = times.boundary_s;
  switch (plan.order) {
    case Order::depth_first:
    case Order::layered:
    case Order::hybrid:
      return compute_time(plan, stages, times.both_s());
    case Order::gpipe: {
      const auto direction = [&](double t) {
        return (m - 1) * std::max(stages.layers_each * t, c) + stages.layers * t + (ranks - 1) * c;
      };
      return direction(times.forward_s) + direction(times.backward_s);
    }
    case Order::one_forward_one_backward:
      return compute_time(plan, stages, times.both_s()) +
             2 * c * (ranks - 1 + std::floor((m - 1) * (ranks - 1) / ranks));
    case Order::interleaved:
      return compute_time(plan, stages, times.both_s()) + 2 * c * (static_cast<double>(plan.chunks) * ranks - 1);
    case Order::modular: {
      const double n = static_cast<double>(plan.groups);
      const double group = m / n;
      const auto direction = [&](double t) {
        const double pace = std::max(t, c);
        return (stages.layers_each - 1) * std::max(group * pace, ranks * (t + c)) + (group - 1) * pace + t +
               (stages.last_round - 1) * (t + c);
      };
      return n * (direction(times.forward_s) + direction(times.backward_s));
    }
  }
  return 0;
}

double exposed_data_time(const StepPlan& plan, const Stages& stages, const LayerTimes& times) {
  if (plan.data == 1) {
    return 0;
  }
  if (plan.order == Order::interleaved) {
    return exposed_all_reduce_interleaved(plan, stages, times);
  }
  const bool ordinary = plan.order == Order::gpipe || plan.order == Order::one_forward_one_backward;
  if (plan.zero_stage == 3 && ordinary) {
    return bounded_zero_3_step(plan, stages, times) - compute_time(plan, stages, times.both_s());
  }
  const double groups = static_cast<double>(plan.group_count());
  const double visit = visit_micro_batches(plan, stages);
  const double shared =
      plan.order == Order::modular ? static_cast<double>(plan.micro_batches) / groups * times.boundary_s : 0;
  const Exposure exposure{.layers = stages.layers_each,
                          .groups = groups,
                          .gather = times.gather_s,
                          .reduce = times.reduce_s,
                          .forward = visit * times.forward_s - shared,
                          .backward = visit * times.backward_s - shared};
  switch (plan.zero_stage) {
    case 0:
      return exposed_all_reduce(exposure.layers, times.all_reduce_s, exposure.backward);
    case 1:
      return exposed_zero_1(exposure);
    case 2:
      return plan.keep_full_gradient ? exposed_zero_1(exposure) : exposed_zero_2(exposure);
    default:
      return exposed_zero_3(exposure, plan.keep_full_gradient);
  }
}

StepTime step_time(const StepPlan& plan, const Stages& stages, const LayerTimes& times) {
  const double compute = compute_time(plan, stages, times.both_s());
  const double pipeline = pipeline_time(plan, stages, times);
  StepTime step;
  step.work_s = static_cast<double>(plan.micro_batches) * stages.layers / stages.ranks * times.both_s();
  step.bubble_s = compute - step.work_s;
  step.boundary_s = pipeline - compute;
  step.exposed_data_s = exposed_data_time(plan, stages, times);
  step.total_s = pipeline + step.exposed_data_s;
  return step;
}

std::optional<std::string_view> not_covered(const StepPlan& plan, const Stages& stages, const LayerTimes& times) {
  if (plan.micro_batches % plan.group_count() != 0) {
    return "the number of groups does not divide the micro-batches";
  }
  if (!is_pipeline(plan.order)) {
    return plan.pipeline > 1 ? std::optional<std::string_view>("a one-stage order on several pipeline ranks")
                             : std::nullopt;
  }
  if (plan.order == Order::modular) {
    return std::nullopt;
  }
  if (plan.zero_stage == 2 && !plan.keep_full_gradient && plan.data > 1) {
    return "no form for ZeRO-2 in an ordinary pipeline";
  }
  if (plan.zero_stage == 3 && plan.keep_full_gradient) {
    return "no form for ZeRO-3 in an ordinary pipeline with the full gradient kept";
  }
  if (plan.order == Order::interleaved) {
    const double chunk = stages.layers_each / static_cast<double>(plan.chunks);
    if (plan.zero_stage > 0 && plan.data > 1) {
      return "no form for ZeRO in an interleaved pipeline";
    }
    if (plan.micro_batches % plan.pipeline != 0) {
      return "the last interleaved group is shorter than the pipeline";
    }
    if (times.boundary_s > chunk * times.forward_s) {
      return "a boundary transfer takes longer than a chunk's forward pass";
    }
  }
  return std::nullopt;
}

DataTraffic data_traffic(const StepPlan& plan, std::int64_t layers, std::int64_t resident, std::int64_t rank) {
  const double k = static_cast<double>(layers);
  const double m = static_cast<double>(plan.micro_batches);
  const double n = static_cast<double>(plan.group_count());
  const double p = static_cast<double>(resident);
  const double ahead = static_cast<double>(std::min(plan.micro_batches, plan.pipeline - 1 - rank));
  double visits = n;
  if (layers == 1 && plan.order == Order::gpipe) {
    visits = 1;
  } else if (layers == 1 && plan.order == Order::one_forward_one_backward) {
    visits = std::max(1.0, m - ahead);
  }
  const double reductions = plan.keep_full_gradient ? k : visits * k;
  switch (plan.zero_stage) {
    case 0:
      return {0, 2 * k};
    case 1:
      return {k, k};
    case 2:
      return {k, reductions};
    default:
      break;
  }
  if (resident >= layers) {
    return {k, reductions};
  }
  if (plan.order == Order::gpipe) {
    return {2 * visits * k - p, reductions};
  }
  if (plan.order == Order::one_forward_one_backward) {
    return {2 * visits * k - p * std::max(1.0, 2 * (m - ahead) - 1), reductions};
  }
  return {2 * visits * k - p * (2 * visits - 1), reductions};
}

std::optional<std::string_view> traffic_not_covered(const StepPlan& plan, std::int64_t layers) {
  if (plan.order == Order::interleaved && plan.zero_stage == 3) {
    return "there is no form for the gathers of interleaved 1F1B with ZeRO-3";
  }
  if (plan.order == Order::interleaved && plan.zero_stage == 2 && !plan.keep_full_gradient &&
      layers < 2 * plan.chunks) {
    return "there is no form for the reductions of interleaved 1F1B with ZeRO-2 in chunks of one layer";
  }
  return std::nullopt;
}

double data_bytes_sent(const DataTraffic& traffic, const ModelShape& model, const StepPlan& plan,
                       const WireBytes& wire) {
  const double data = static_cast<double>(plan.data);
  const double layer = padded_bytes(layer_parameters(model) / static_cast<double>(plan.tensor), 1, data);
  return (traffic.gathers * wire.parameter + traffic.reductions * wire.gradient) * (data - 1) / data * layer;
}

double boundaries_crossed(const StepPlan& plan, std::int64_t layers) {
  if (plan.pipeline == 1) {
    return 0;
  }
  switch (plan.order) {
    case Order::interleaved:
      return static_cast<double>(plan.chunks * plan.pipeline - 1);
    case Order::modular:
      return static_cast<double>(layers - 1);
    default:
      return static_cast<double>(plan.pipeline - 1);
  }
}

double tokens_to_hide_network(int zero_stage, Recompute recompute, double data, const Rates& rates,
                              const WireBytes& wire) {
  const double tokens = 1;
  return bandwidth_to_hide_network(zero_stage, recompute, data, rates.flops_per_s, tokens, wire) /
         rates.network_bytes_per_s;
}

double bandwidth_to_hide_network(int zero_stage, Recompute recompute, double data, double flops_per_s, double tokens,
                                 const WireBytes& wire) {
  // Forward takes 24 d² FLOPs a token, backward twice that, a full recomputation once more.
  const double backward_forwards = recompute == Recompute::full ? 3 : 2;
  const double ring = (data - 1) / data;
  const double unit = ring * flops_per_s / tokens;
  if (zero_stage == 0) {
    return wire.gradient * unit / backward_forwards;
  }
  const double behind_backward = zero_stage == 3 ? wire.parameter + wire.gradient : wire.gradient;
  return std::max(wire.parameter * unit / 2, behind_backward * unit / (2 * backward_forwards));
}

double layers_kept(const StepPlan& plan, const Stages& stages, std::int64_t rank) {
  const double m = static_cast<double>(plan.micro_batches);
  const double after = stages.ranks - 1 - static_cast<double>(rank);
  switch (plan.order) {
    case Order::one_forward_one_backward:
      return std::min(m, after + 1) * stages.layers_each;
    case Order::interleaved: {
      const double v = static_cast<double>(plan.chunks);
      const double group = std::ceil(m / std::max(1.0, std::floor(m / stages.ranks)));
      return std::min(m * v, 2 * after + (v - 1) * group + 1) * stages.layers_each / v;
    }
    case Order::gpipe:
      return m * stages.layers_each;
    default:
      return m / static_cast<double>(plan.group_count()) * stages.layers_each;
  }
}

double checkpoint_bytes(const StepPlan& plan, const ModelShape& model, const WireBytes& wire) {
  const double whole = static_cast<double>(plan.micro_batch) * static_cast<double>(model.sequence) *
                       static_cast<double>(model.hidden) * wire.activation;
  return plan.sequence_parallel ? whole / static_cast<double>(plan.tensor) : whole;
}

MemoryBytes memory_of(const StepPlan& plan, const ModelShape& model, const WireBytes& wire, std::int64_t rank) {
  const Stages stages = stages_of(model.layers, plan.pipeline);
  const double tensor = static_cast<double>(plan.tensor);
  const double data = static_cast<double>(plan.data);
  const double d = static_cast<double>(model.hidden);
  const double s = static_cast<double>(model.sequence);
  const double layer = layer_parameters(model) / tensor;
  const double here = layer * stages.layers_each;
  const auto split_from = [&](int stage) { return plan.zero_stage >= stage ? data : 1.0; };

  MemoryBytes memory;
  memory.parameters = 2 * here / split_from(3);
  memory.gradients = wire.gradient * here / split_from(2);
  memory.optimizer = 12 * here / split_from(1);
  memory.buffers = (plan.zero_stage == 3 ? 2 * wire.parameter * layer : 0) +
                   (plan.zero_stage >= 2 ? 2 * wire.gradient * layer : 0) +
                   (plan.zero_stage >= 2 && plan.keep_full_gradient ? wire.gradient * here : 0);

  const double tokens = static_cast<double>(plan.micro_batch) * s;
  const double scores = 5 * static_cast<double>(model.heads) * s / tensor;
  const double activations = plan.sequence_parallel ? 34 * d / tensor : 10 * d + 24 * d / tensor;
  memory.working_set = tokens * (activations + scores);
  const double kept_each = plan.recompute == Recompute::full        ? checkpoint_bytes(plan, model, wire)
                           : plan.recompute == Recompute::selective ? tokens * activations
                                                                    : memory.working_set;
  memory.checkpoints = layers_kept(plan, stages, rank) * kept_each;
  return memory;
}

void validate_for_forms(const ModelShape& model) {
  const auto bounded = [](std::int64_t value, const char* key, std::int64_t most) {
    if (value < 1 || value > most) {
      throw UsageError(fmt::format("model.{} is {}; it must be from 1 to {}", key, value, most));
    }
  };
  bounded(model.layers, "layers", 1'000'000);
  bounded(model.hidden, "hidden", 1'000'000'000);
  bounded(model.heads, "heads", 1'000'000'000);
  bounded(model.sequence, "sequence", 1'000'000'000);
  if (model.hidden % model.heads != 0) {
    throw UsageError(
        fmt::format("model.heads is {}, which does not divide model.hidden {}", model.heads, model.hidden));
  }
  if (total_parameters(model) > 1e18) {
    throw UsageError(
        fmt::format("model has {:.3g} parameters in its layers; at most 1e18 are supported", total_parameters(model)));
  }
}

void validate(const Rates& rates) {
  const auto positive = [](double value, const char* what, const char* unit) {
    if (!(value > 0) || !std::isfinite(value)) {
      throw UsageError(fmt::format("{} is {} {}; it must be above 0", what, value, unit));
    }
  };
  positive(rates.flops_per_s, "the device's peak rate", "FLOP/s");
  positive(rates.tensor_bytes_per_s, "the bandwidth inside a node", "bytes/s");
  positive(rates.network_bytes_per_s, "the bandwidth between nodes", "bytes/s");
}

}  // namespace lamina::analysis
