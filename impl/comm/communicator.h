// Messages between the ranks of a group. Collectives are written once over this (collectives.h).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "impl/base/error.h"
#include "impl/base/real.h"
#include "impl/plan/model_shape.h"

namespace lamina {

// What a byte on the wire was sent for: the rows and columns of the traffic ledger.
enum class TrafficKind : std::uint8_t { data_reduce, data_gather, pipeline_send, tensor, control };
inline constexpr int kTrafficKinds = 5;
std::string_view name_of(TrafficKind kind);

struct TrafficTag {
  TrafficKind kind = TrafficKind::control;
  UnitKind unit = UnitKind::layer;
};

// Bytes a rank sent, by kind and unit kind. Counted where a message, or a library's collective, is handed to the
// transport, by several streams at once.
class TrafficLedger {
 public:
  void add(TrafficTag tag, std::int64_t bytes);
  std::int64_t bytes(TrafficKind kind, UnitKind unit) const;
  std::int64_t bytes(TrafficKind kind) const;  // over all units
  void reset();

 private:
  std::array<std::array<std::atomic<std::int64_t>, 3>, kTrafficKinds> bytes_{};
};

// Thrown out of every blocked or later call once the job is being ended because of another rank's failure.
class Aborted : public Error {
 public:
  using Error::Error;
};

// A message or a library's collective under way. wait() returns when the buffer may be reused (send) or holds the
// message (receive) or the result; it throws Aborted, or Error naming what was waited for, bytes and the time waited
// once the transport's deadline has passed. A request destroyed before wait() has returned leaves its buffer alone from
// then on: the message does not arrive, and the peer's wait() ends by abort or deadline.
class Request {
 public:
  virtual ~Request() = default;
  virtual void wait() = 0;
};

// Who makes a group's collectives: the rings of collectives.h, or the library under the transport (MPI's MPI_I*), whose
// way of making them, and so the bytes on the wire and the order of sums, is its own.
enum class CollectiveBackend : std::uint8_t { ring, library };
std::string_view name_of(CollectiveBackend collectives);

// A collective as collectives.h describes it, in place on all of a rank's values.
struct CollectiveCall {
  enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather } kind = Kind::all_reduce;
  RealType type = RealType::fp64;
  std::span<std::byte> values;  // a multiple of size() elements
};
std::string_view name_of(CollectiveCall::Kind kind);

// One group of ranks. Messages between two ranks of a group arrive in the order sent; there are no tags. A
// communicator is used by one thread at a time; different communicators are independent. Sends are rendezvous: they
// need not complete before the receiver has posted its receive. A receive has exactly the sent message's size; else its
// wait() throws Error (the sender's may). Peers are other members: nobody sends to itself.
class Communicator {
 public:
  // Room for the chunks that a collective has under way; reserved with the communicator, touched when first used.
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{2} << 20;

  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;
  CollectiveBackend collectives() const { return collectives_; }
  std::span<std::byte> workspace() { return {workspace_.get(), static_cast<std::size_t>(kWorkspaceBytes)}; }

  // Counts the bytes in the ledger, then starts the message.
  std::unique_ptr<Request> send(int peer, std::span<const std::byte> bytes, TrafficTag tag) {
    ledger_->add(tag, static_cast<std::int64_t>(bytes.size()));
    return start_send(peer, bytes);
  }
  std::unique_ptr<Request> receive(int peer, std::span<std::byte> bytes) { return start_receive(peer, bytes); }
  // By the library; called by all members in the same order. What it sends is not known: the ledger counts
  // algorithm_bytes. Throws Error where collectives() is ring.
  std::unique_ptr<Request> collective(const CollectiveCall& call, std::int64_t algorithm_bytes, TrafficTag tag);

 protected:
  explicit Communicator(TrafficLedger* ledger, CollectiveBackend collectives = CollectiveBackend::ring)
      : ledger_(ledger),
        collectives_(collectives),
        workspace_(std::make_unique_for_overwrite<std::byte[]>(kWorkspaceBytes)) {}
  virtual std::unique_ptr<Request> start_send(int peer, std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Request> start_receive(int peer, std::span<std::byte> bytes) = 0;
  // Where a group can be made for a library's collectives.
  virtual std::unique_ptr<Request> start_collective(const CollectiveCall& call);

 private:
  TrafficLedger* ledger_;
  CollectiveBackend collectives_;
  std::unique_ptr<std::byte[]> workspace_;
};

// One rank's access to the others.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "threads", "mpi"
  // A group of world ranks in this order; every member calls it with the same arguments, in the same order of calls.
  // It ends before its transport. Throws Error for collectives that the transport has none of.
  virtual std::unique_ptr<Communicator> group(const std::vector<int>& members, CollectiveBackend collectives) = 0;
  std::unique_ptr<Communicator> group(const std::vector<int>& members) {
    return group(members, CollectiveBackend::ring);
  }
  virtual TrafficLedger& ledger() = 0;
  // Makes every blocked or later call on every rank throw Aborted; the first reason wins.
  virtual void abort(const std::string& reason) = 0;
  // Whether the job is being ended. Where ranks are processes, they end with it before anybody can ask.
  virtual bool aborted() const { return false; }
  // How long one wait() may take; without end until set.
  virtual void set_deadline(std::chrono::duration<double> longest_wait) = 0;
};

// A rank's place among the members of a group; throws Error when a member is out of range or twice in the list, or
// when the rank is not a member.
int place_in_group(const std::vector<int>& members, int rank, int world_size);

}  // namespace lamina
