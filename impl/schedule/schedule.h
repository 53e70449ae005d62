// A training step as data: one program of ops for each pipeline rank. Everything that runs, simulates, prints or
// proves a step reads these structures and nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "impl/plan/plan.h"

namespace lamina {

// A stream runs its ops in program order; an op starts when its stream reaches it and all it waits for is done:
// CUDA's stream-and-event rule. Executors follow that rule and add nothing.
// Transfers between pipeline ranks have a stream for each direction, so that the gradients of a backward pass do not
// queue behind the activations of a forward pass.
enum class StreamKind : std::uint8_t {
  compute,
  data,
  tensor,
  send_forward,      // activations
  receive_forward,   // activations
  send_backward,     // their gradients
  receive_backward,  // their gradients
  host
};
inline constexpr int kStreamKinds = 8;
inline constexpr auto kStreams = [] {
  std::array<StreamKind, kStreamKinds> streams{};
  for (std::size_t i = 0; i < kStreamKinds; ++i) {
    streams[i] = static_cast<StreamKind>(i);
  }
  return streams;
}();

// What an op does, with the slots it reads and writes in this order ([x]: only where the plan has it):
//
//   kind        part            reads                                              writes
//   forward     embedding       parameters                                         checkpoint
//   forward     whole           parameters, checkpoint                             checkpoint, saved
//   loss        head            parameters, checkpoint, target_count, loss_sum     activation_gradient, gradient,
//                                                                                  loss_sum, saved
//   backward    whole           parameters, checkpoint, activation_gradient,       activation_gradient, gradient,
//                               saved unless recompute is full                     [saved if recompute is full]
//   backward    embedding       activation_gradient                                gradient
//   send        (unit's)        checkpoint or activation_gradient                  -
//   receive     (unit's)        -                                                  checkpoint or activation_gradient
//   gather      (unit's)        parameter_shard (ZeRO-3) or parameters (1, 2)      parameters
//   reduce      (unit's)        gradient                                           gradient_shard, or gradient where
//                                                                                  the full gradient is kept (in place)
//   all_reduce  (unit's)        gradient                                           gradient
//   update      (unit's)        gradient or gradient_shard, [gradient_norm if      parameters or parameter_shard
//                               it updates after the norm]
//   copy_in     (unit's)        host slot                                          device slot
//   copy_out    (unit's)        device slot                                        host slot
//   count       -               -                                                  target_count, loss_sum (to 0)
//   norm        -               every gradient or gradient_shard of the rank       gradient_norm
//   loss_total  -               loss_sum                                           loss_sum
//
// A layer's backward works in place: it reads the gradient of its output and leaves the gradient of its input in the
// same slot. An op that accumulates also reads what it adds to. A send or receive runs on the forward stream with a
// checkpoint, on the backward stream with an activation_gradient. forward, loss and backward run on the compute stream;
// `loss` is head forward, cross-entropy and head backward of one micro-batch (a layered order would otherwise keep m
// sets of logits). count, norm and loss_total are collectives of a few bytes, category `control` in the ledger: count
// and loss_total over the data-parallel group, norm over all ranks.
enum class OpKind : std::uint8_t {
  forward,
  loss,
  backward,
  send,
  receive,
  gather,
  reduce,
  all_reduce,
  update,
  copy_in,
  copy_out,
  count,
  norm,
  loss_total
};

enum class Part : std::uint8_t { whole, attention, mlp, embedding, head };

enum class SlotKind : std::uint8_t {
  parameters,           // a unit's whole parameters, resident or gathered
  parameter_shard,      // this rank's 1/D of them (ZeRO-3)
  gradient,             // a unit's whole gradient
  gradient_shard,       // this rank's 1/D of it, reduced (ZeRO-2 and 3)
  checkpoint,           // the activation at a layer's input (or at the head's): b·s·d elements
  saved,                // what a layer's forward leaves for its backward; or the head's working set
  activation_gradient,  // b·s·d elements
  target_count,         // one number: counted targets of the step, over all data-parallel ranks
  loss_sum,             // one number: summed cross-entropy
  gradient_norm         // one number
};

// A piece of memory that exists before the first step and to the end of the run.
struct Slot {
  SlotKind kind = SlotKind::checkpoint;
  Unit unit;  // whose size the slot has: its own unit where it is persistent, layer 0 where any layer may use it
  bool operator==(const Slot&) const = default;
};

struct Op {
  std::int32_t id = 0;  // its index in the program
  OpKind kind = OpKind::forward;
  Part part = Part::whole;
  StreamKind stream = StreamKind::compute;
  Unit unit;                         // for send and receive: the unit whose input (or input gradient) travels
  std::int32_t micro_batch = -1;     // -1 where it has none
  std::int32_t group = -1;           // of a hybrid order; -1 where it has none
  std::int32_t peer = -1;            // the other pipeline rank, for send and receive
  bool accumulate = false;           // adds to the gradient (shard) it writes, instead of replacing it
  std::vector<std::int32_t> reads;   // slots
  std::vector<std::int32_t> writes;  // slots
  std::int64_t elements = 0;         // that a communication or copy op moves (a collective: of the whole, padded)
  std::vector<std::int32_t> waits;   // ids of ops in the same program, on other streams, that must be done before
  bool operator==(const Op&) const = default;
};

struct Program {
  std::vector<Slot> slots;
  std::vector<Op> ops;  // in issue order
  bool operator==(const Program&) const = default;
};

struct Schedule {
  Plan plan;
  std::vector<Program> programs;  // one for each pipeline rank; data- and tensor-parallel ranks run the same
  bool operator==(const Schedule&) const = default;
};

std::string_view name_of(StreamKind stream);
std::string_view name_of(OpKind kind);
std::string_view name_of(Part part);
std::string_view name_of(SlotKind kind);

// "backward layer 3 micro-batch 2", for messages and traces.
std::string describe(const Op& op);

// Whether the stream carries gradients between pipeline ranks.
constexpr bool is_backward(StreamKind stream) {
  return stream == StreamKind::send_backward || stream == StreamKind::receive_backward;
}
constexpr bool is_compute(OpKind kind) {
  return kind == OpKind::forward || kind == OpKind::loss || kind == OpKind::backward;
}
constexpr bool is_control(OpKind kind) {
  return kind == OpKind::count || kind == OpKind::norm || kind == OpKind::loss_total;
}
constexpr bool is_collective(OpKind kind) {
  return kind == OpKind::gather || kind == OpKind::reduce || kind == OpKind::all_reduce || is_control(kind);
}

// What a method decides, per pipeline rank: which whole layers it computes, in which order.
struct ComputeStep {
  bool forward = true;
  std::int32_t layer = 0;
  std::int32_t micro_batch = 0;
  std::int32_t group = 0;
  bool operator==(const ComputeStep&) const = default;
};
using ComputeOrder = std::vector<std::vector<ComputeStep>>;  // [pipeline rank][position]

}  // namespace lamina
