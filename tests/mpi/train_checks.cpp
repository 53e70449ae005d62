// Run under an MPI launcher: training over processes is training over threads, to the bit, and training on one rank, up
// to rounding; with MPI's own collectives it is both up to rounding. Arguments: the number of ranks launched, and
// whether sends are rendezvous (0, 1). Every plan that needs no more ranks than that is run, the smaller ones on a
// sub-group.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "impl/comm/mpi.h"
#include "impl/comm/mpi_library.h"
#include "impl/engine/train.h"
#include "impl/schedule/verify.h"
#include "tests/unit/schedule_cases.h"

namespace {
// Calls of MPI's own collectives: results alone do not tell who made them.
std::atomic<int> library_reductions = 0;
std::atomic<int> library_gathers = 0;
}  // namespace

// MPI's own way of being looked at: these stand before the library's, which have a second name.
extern "C" int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm group,
                              MPI_Request* request) {
  ++library_reductions;
  return PMPI_Iallreduce(from, to, count, type, op, group, request);
}
extern "C" int MPI_Ireduce_scatter_block(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                                         MPI_Comm group, MPI_Request* request) {
  ++library_reductions;
  return PMPI_Ireduce_scatter_block(from, to, count, type, op, group, request);
}
extern "C" int MPI_Iallgather(const void* from, int sent, MPI_Datatype sent_type, void* to, int count,
                              MPI_Datatype type, MPI_Comm group, MPI_Request* request) {
  ++library_gathers;
  return PMPI_Iallgather(from, sent, sent_type, to, count, type, group, request);
}

namespace lamina {
namespace {

constexpr double kOverflowsOnce = 0x1p18;  // a loss scale: half of it fits into fp16
constexpr ModelShape kShape{.layers = 0, .hidden = 6, .heads = 1, .sequence = 3, .vocabulary = 97};
using Tensors = std::map<std::string, NamedTensor>;

TrainRequest request_of(const ScheduleCase& c) {
  TrainRequest request;
  request.schedule = build_schedule(method_named(c.method), plan_of(c, kShape));
  verify(request.schedule);
  request.precision = precision_of(RealType::fp64);
  request.optimizer = {.kind = OptimizerConfig::Kind::sgd, .learning_rate = 0.1};
  request.data = {.kind = DataConfig::Kind::synthetic, .path = "", .seed = 2};
  request.seed = 5;
  request.measured_steps = 3;
  return request;
}

TrainRequest with_dump(TrainRequest request, const std::string& name) {
  request.dump = DumpConfig{.step = 1, .gradients = name + ".gradients", .weights = name + ".weights"};
  return request;
}

std::int64_t traffic(const TrainOutcome& outcome, std::size_t rank, TrafficKind kind, UnitKind unit) {
  return outcome.steps[0].rank_traffic[rank].bytes[static_cast<std::size_t>(kind)][static_cast<std::size_t>(unit)];
}

void check_close(const Tensors& ours, const Tensors& theirs, double tolerance, const std::string& what) {
  LAMINA_CHECK(ours.size() == theirs.size() && !ours.empty(), "{}: {} tensors and {}", what, ours.size(),
               theirs.size());
  for (const auto& [name, tensor] : theirs) {
    const auto& values = ours.at(name).values;
    LAMINA_CHECK(values.size() == tensor.values.size(), "{}: {} has {} and {} values", what, name, values.size(),
                 tensor.values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      LAMINA_CHECK(std::abs(values[i] - tensor.values[i]) <= tolerance, "{}: {}[{}] is {} and {}", what, name, i,
                   values[i], tensor.values[i]);
    }
  }
}

// Losses, norms, dumps, traffic and memory; tolerance 0: the same bits.
void check_equal(const TrainOutcome& ours, const TrainOutcome& theirs, double tolerance, const std::string& what) {
  LAMINA_CHECK(ours.steps.size() == theirs.steps.size() && ours.steps.size() == 3, "{} and {} steps", ours.steps.size(),
               theirs.steps.size());
  for (std::size_t step = 0; step < ours.steps.size(); ++step) {
    const auto near = [&](double a, double b) { return a == b || std::abs(a - b) <= tolerance * std::abs(b); };
    LAMINA_CHECK(near(ours.steps[step].loss, theirs.steps[step].loss), "{}: step {}: loss {} and {}", what, step,
                 ours.steps[step].loss, theirs.steps[step].loss);
    LAMINA_CHECK(near(ours.steps[step].gradient_norm, theirs.steps[step].gradient_norm), "{}: step {}: norm {} and {}",
                 what, step, ours.steps[step].gradient_norm, theirs.steps[step].gradient_norm);
    LAMINA_CHECK(ours.steps[step].counted_targets == theirs.steps[step].counted_targets,
                 "{}: step {}: {} and {} "
                 "targets",
                 what, step, ours.steps[step].counted_targets, theirs.steps[step].counted_targets);
  }
  LAMINA_CHECK(ours.parameters_built == theirs.parameters_built && ours.layers_built == theirs.layers_built,
               "{}: {} and {} parameters", what, ours.parameters_built, theirs.parameters_built);
}

void check_ledgers(const TrainOutcome& ours, const TrainOutcome& theirs) {
  for (std::size_t step = 0; step < ours.steps.size(); ++step) {
    LAMINA_CHECK(ours.steps[step].rank_traffic == theirs.steps[step].rank_traffic, "step {}: other traffic", step);
  }
  LAMINA_CHECK(ours.rank_memory.size() == theirs.rank_memory.size(), "{} and {} ranks", ours.rank_memory.size(),
               theirs.rank_memory.size());
  for (std::size_t rank = 0; rank < ours.rank_memory.size(); ++rank) {
    LAMINA_CHECK(ours.rank_memory[rank].total() == theirs.rank_memory[rank].total(), "rank {}: other memory", rank);
    LAMINA_CHECK(ours.steps[0].rank_time_s[rank] > 0, "rank {}: no time", rank);
  }
  LAMINA_CHECK(ours.rank_wire.size() == ours.rank_memory.size() &&
                   ours.resident_set_growth_bytes.size() == ours.rank_memory.size(),
               "{} ranks' wires, {} processes", ours.rank_wire.size(), ours.resident_set_growth_bytes.size());
}

// Events of every rank in every step, none twice.
void check_trace(const TrainOutcome& outcome, const Schedule& schedule) {
  std::size_t expected = 0;
  for (std::int64_t rank = 0; rank < schedule.plan.parallel.ranks(); ++rank) {
    const Coordinates at = coordinates_of(rank, schedule.plan.parallel);
    expected += 3 * schedule.programs[static_cast<std::size_t>(at.pipeline)].ops.size();
  }
  LAMINA_CHECK(outcome.trace.size() == expected, "{} events, expected {}", outcome.trace.size(), expected);
}

void check_case(const ScheduleCase& c, CollectiveBackend collectives, Transport& transport) {
  TrainRequest request = with_dump(request_of(c), "processes");
  const std::int64_t ranks = request.schedule.plan.parallel.ranks();
  if (ranks > transport.size() || transport.rank() >= ranks) {
    return;
  }
  request.trace = true;
  request.collectives = collectives;
  library_reductions = library_gathers = 0;
  const TrainOutcome ours = train_on(request, transport, {});
  if (transport.rank() != 0) {
    return;
  }
  try {
    const bool by_library = collectives == CollectiveBackend::library && c.data > 1;
    LAMINA_CHECK((library_reductions > 0) == by_library && (library_gathers > 0) == (by_library && c.zero_stage > 0),
                 "MPI was asked for {} reductions and {} gathers", library_reductions.load(), library_gathers.load());
    LAMINA_CHECK(ours.collectives == collectives, "the outcome names {} collectives", name_of(ours.collectives));
    check_trace(ours, request.schedule);
    request.collectives = CollectiveBackend::ring;
    const TrainOutcome threads = train(with_dump(request, "threads"), {});
    const bool same_order = collectives == CollectiveBackend::ring;
    check_equal(ours, threads, same_order ? 0 : 1e-11, "over threads");
    check_ledgers(ours, threads);
    const TrainOutcome one = train(
        with_dump(
            request_of({.method = "data_parallel", .layers = c.layers, .micro_batches = c.data * c.micro_batches}),
            "one"),
        {});
    check_equal(ours, one, 1e-11, "on one rank");
    for (const char* kind : {".gradients", ".weights"}) {
      const auto file = [&](const char* name) { return read_safetensors(std::string(name) + kind); };
      check_close(file("processes"), file("threads"), same_order ? 0 : 1e-13, std::string("over threads") + kind);
      check_close(file("processes"), file("one"), 1e-13, std::string("on one rank") + kind);
    }
  } catch (const std::exception& error) {
    throw Error(fmt::format("{}, {} collectives: {}", to_string(c), name_of(collectives), error.what()));
  }
}

// Weights and messages of 16 bits, with gradients on the wire in fp32 or in 16 bits: the same bits as over threads, and
// where the loss scale is too large, the same steps skipped by all ranks.
void check_sixteen_bits(ScheduleCase c, const Precision& precision, bool first_step_overflows, Transport& transport) {
  c.update_after_norm = precision.scales_loss();
  const auto request = [&](const std::string& dump) {
    TrainRequest made = with_dump(request_of(c), dump);
    made.precision = precision;
    return made;
  };
  const std::int64_t ranks = request("").schedule.plan.parallel.ranks();
  if (ranks > transport.size() || transport.rank() >= ranks) {
    return;
  }
  const TrainOutcome ours = train_on(request("processes"), transport, {});
  if (transport.rank() != 0) {
    return;
  }
  const std::string what =
      fmt::format("{} in {}, reduced in {}", to_string(c), name_of(precision.compute), name_of(precision.reduce));
  const TrainOutcome threads = train(request("threads"), {});
  check_equal(ours, threads, 0, what);
  check_ledgers(ours, threads);
  for (std::size_t step = 0; step < ours.steps.size(); ++step) {
    LAMINA_CHECK(ours.steps[step].skipped == (first_step_overflows && step == 0) &&
                     ours.steps[step].loss_scale == threads.steps[step].loss_scale,
                 "{}: step {}: skipped {}, loss scale {}, over threads {}", what, step, ours.steps[step].skipped,
                 ours.steps[step].loss_scale, threads.steps[step].loss_scale);
  }
  for (const char* kind : {".gradients", ".weights"}) {
    check_close(read_safetensors(std::string("processes") + kind), read_safetensors(std::string("threads") + kind), 0,
                what + kind);
  }
}

void check_sixteen_bits(Transport& transport) {
  const ScheduleCase layered{
      .method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = 3, .zero_stage = 3};
  const ScheduleCase modular{
      .method = "modular_pipeline", .layers = 5, .micro_batches = 4, .data = 2, .pipeline = 2, .zero_stage = 3};
  const ScheduleCase one_f_one_b{
      .method = "one_f_one_b", .layers = 5, .micro_batches = 4, .pipeline = 3, .recompute = Recompute::full};
  Precision bf16 = precision_of(RealType::bf16);
  check_sixteen_bits(layered, bf16, false, transport);
  check_sixteen_bits(one_f_one_b, bf16, false, transport);
  bf16.reduce = RealType::bf16;
  check_sixteen_bits(modular, bf16, false, transport);
  Precision fp16 = precision_of(RealType::fp16);
  check_sixteen_bits(layered, fp16, false, transport);
  fp16.reduce = RealType::fp16;
  check_sixteen_bits(modular, fp16, false, transport);
  fp16.loss_scale = kOverflowsOnce;
  check_sixteen_bits(modular, fp16, true, transport);
}

// What a step sends, in elements of 8 bytes: layers of 510 (half of each twice), embedding 600, head 594.
void check_traffic(Transport& transport) {
  struct Case {
    ScheduleCase plan;
    std::int64_t layers_reduce, layers_gather, embedding_reduce, head_reduce;
  };
  const std::vector<Case> cases{
      {{.method = "data_parallel", .layers = 3, .micro_batches = 4, .data = 2}, 1530, 0, 600, 594},
      {{.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = 2}, 1530, 0, 600, 594},
      {{.method = "layered_accumulation", .layers = 3, .micro_batches = 2, .data = 5}, 2448, 0, 960, 952},
      {{.method = "layered_accumulation",
        .layers = 3,
        .micro_batches = 4,
        .data = 2,
        .zero_stage = 3,
        .resident_layers = 1},
       765,
       1275,
       300,
       297},
      {{.method = "data_parallel", .layers = 3, .micro_batches = 4, .data = 2, .zero_stage = 3, .resident_layers = 1},
       3060,
       4335,
       1200,
       1188},
  };
  for (const Case& c : cases) {
    if (c.plan.data > transport.size() || transport.rank() >= c.plan.data) {
      continue;
    }
    const TrainOutcome outcome = train_on(request_of(c.plan), transport, {});
    for (std::size_t rank = 0; transport.rank() == 0 && rank < outcome.rank_memory.size(); ++rank) {
      const auto expect = [&](TrafficKind kind, UnitKind unit, std::int64_t elements) {
        LAMINA_CHECK(traffic(outcome, rank, kind, unit) == 8 * elements, "{}: rank {} sent {} bytes as {}, expected {}",
                     to_string(c.plan), rank, traffic(outcome, rank, kind, unit), name_of(kind), 8 * elements);
      };
      expect(TrafficKind::data_reduce, UnitKind::layer, c.layers_reduce);
      expect(TrafficKind::data_gather, UnitKind::layer, c.layers_gather);
      expect(TrafficKind::data_reduce, UnitKind::embedding, c.embedding_reduce);
      expect(TrafficKind::data_reduce, UnitKind::head, c.head_reduce);
      expect(TrafficKind::pipeline_send, UnitKind::layer, 0);
    }
  }
}

// One rank to eight; each pair of (method, ZeRO stage), (stage, recomputation) and (method, ranks) … at least once.
std::vector<ScheduleCase> cases() {
  return {
      {.method = "data_parallel", .layers = 2, .micro_batches = 3},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .zero_stage = 3},
      {.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 2, .zero_stage = 2},
      {.method = "layered_accumulation",
       .layers = 4,
       .micro_batches = 3,
       .data = 2,
       .zero_stage = 2,
       .recompute = Recompute::selective,
       .keep_full_gradient = true},
      {.method = "modular_pipeline", .layers = 4, .micro_batches = 3, .pipeline = 2},
      {.method = "interleaved_one_f_one_b", .layers = 8, .micro_batches = 5, .pipeline = 2, .chunks = 3},
      {.method = "data_parallel", .layers = 2, .micro_batches = 3, .data = 3},
      {.method = "layered_accumulation",
       .layers = 5,
       .micro_batches = 4,
       .data = 3,
       .groups = 2,
       .zero_stage = 3,
       .resident_layers = 1},
      {.method = "one_f_one_b", .layers = 5, .micro_batches = 4, .pipeline = 3, .recompute = Recompute::full},
      {.method = "gpipe", .layers = 4, .micro_batches = 2, .data = 2, .pipeline = 2, .zero_stage = 3},
      {.method = "one_f_one_b", .layers = 4, .micro_batches = 5, .data = 2, .pipeline = 2, .zero_stage = 1},
      {.method = "modular_pipeline", .layers = 5, .micro_batches = 4, .data = 2, .pipeline = 2, .zero_stage = 3},
      {.method = "layered_accumulation", .layers = 3, .micro_batches = 4, .data = 5, .zero_stage = 1},
      {.method = "data_parallel",
       .layers = 4,
       .micro_batches = 3,
       .data = 5,
       .zero_stage = 3,
       .recompute = Recompute::full},
      {.method = "one_f_one_b",
       .layers = 7,
       .micro_batches = 2,
       .data = 2,
       .pipeline = 3,
       .zero_stage = 2,
       .recompute = Recompute::full},
      {.method = "modular_pipeline",
       .layers = 7,
       .micro_batches = 3,
       .data = 2,
       .pipeline = 3,
       .zero_stage = 3,
       .recompute = Recompute::full},
      {.method = "data_parallel", .layers = 3, .micro_batches = 2, .data = 7, .zero_stage = 1},
      {.method = "interleaved_one_f_one_b", .layers = 8, .micro_batches = 4, .data = 2, .pipeline = 4, .zero_stage = 3},
      {.method = "modular_pipeline", .layers = 6, .micro_batches = 2, .data = 2, .pipeline = 4, .zero_stage = 2},
  };
}

int run(int ranks, bool rendezvous) {
  MpiOptions options;
  options.rendezvous = rendezvous;
  const auto transport = make_mpi_transport(options);
  try {
    LAMINA_CHECK(transport->size() == ranks, "{} ranks, expected {}", transport->size(), ranks);
    for (const ScheduleCase& c : cases()) {
      check_case(c, CollectiveBackend::ring, *transport);
      check_case(c, CollectiveBackend::library, *transport);
    }
    check_sixteen_bits(*transport);
    check_traffic(*transport);
  } catch (const std::exception& error) {
    transport->abort(error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lamina

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpi_train_checks RANKS RENDEZVOUS\n");
    return EXIT_FAILURE;
  }
  try {
    return lamina::run(std::atoi(argv[1]), std::atoi(argv[2]) != 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
