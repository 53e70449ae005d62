#include "impl/comm/threads.h"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <utility>

namespace lamina {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

// A thread that slept for a message runs again a little after the message's virtual arrival. What it posts next is
// dated back by that lateness, so that in a chain of dependent messages the lateness does not add up. Lateness beyond
// this is no timer error but a busy machine, and stays.
constexpr double kMostCredit_s = 200e-6;

// The kernel may delay a sleeper's wake-up by its slack (50 µs unless told otherwise) to save power.
void ask_for_exact_timers() {
  thread_local const bool asked = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL) == 0;  // ns
  static_cast<void>(asked);
}

enum class Side : std::uint8_t { send, receive };

enum class Stage : std::uint8_t {
  posted,     // by one side
  matched,    // by both; its times on the link are known
  copying,    // by whichever side waited first
  copied,     // each side still waits for its time
  withdrawn,  // one side destroyed its request before the copy
  unequal     // the two sides gave different sizes
};

// One message, shared by the requests of both sides. Guarded by the fabric's mutex.
struct Transfer {
  Stage stage = Stage::posted;
  Side first = Side::send;  // the side that posted first
  double first_posted_s = 0;
  std::span<const std::byte> source;
  std::span<std::byte> destination;
  double left_s = 0;     // when the last bit left the sender
  double arrived_s = 0;  // when it reached the receiver
};

struct Group {
  explicit Group(const std::vector<int>& world_ranks)
      : members(world_ranks), channels(members.size() * members.size()), woken(members.size()) {}
  const std::vector<int> members;
  // [sender · size + receiver]: transfers posted by one side only, oldest first; all by the same side.
  std::vector<std::list<std::shared_ptr<Transfer>>> channels;
  std::vector<std::condition_variable> woken;  // one a member: one of its transfers changed, or the job is ended
};

// When a rank's two directions of the link are free again, in virtual time.
struct Port {
  double egress_free_s = 0;
  double ingress_free_s = 0;
};

// What all ranks share. Times are seconds since `start`.
struct Fabric {
  Fabric(int rank_count, const EmulatedLink& emulated) : link(emulated), ports(static_cast<std::size_t>(rank_count)) {}

  double now_s() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
  void throw_if_aborted() const;
  void put_on_link(Transfer& transfer, Port& sender, Port& receiver, double begin_s) const;
  void wait_until(std::condition_variable& woken, Lock& lock, double until_s) const;

  const EmulatedLink link;
  const Clock::time_point start = Clock::now();
  std::mutex mutex;         // guards everything below, all groups and all transfers; not held while copying
  std::string reason;       // of the abort; empty while nothing failed
  std::vector<Port> ports;  // by world rank
  // By members and by how often the asking rank had asked for the same members before.
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<Group>> groups;
};

void Fabric::throw_if_aborted() const {
  if (!reason.empty()) {
    throw Aborted(reason);
  }
}

// Cut-through: the receiver's side takes in the bits while the sender's side lets them out, so an idle link costs
// bytes / bandwidth once. The switch between them holds what the receiver's side cannot take yet.
void Fabric::put_on_link(Transfer& transfer, Port& sender, Port& receiver, double begin_s) const {
  if (link.bandwidth_bits_per_s > 0) {
    const double duration_s = 8.0 * static_cast<double>(transfer.source.size()) / link.bandwidth_bits_per_s;
    const double first_bit_s = std::max(sender.egress_free_s, begin_s);
    sender.egress_free_s = first_bit_s + duration_s;
    receiver.ingress_free_s = std::max(receiver.ingress_free_s, first_bit_s) + duration_s;
    transfer.left_s = sender.egress_free_s;
    transfer.arrived_s = receiver.ingress_free_s + link.latency_s;
  } else {
    transfer.left_s = begin_s;
    transfer.arrived_s = begin_s + link.latency_s;
  }
}

void Fabric::wait_until(std::condition_variable& woken, Lock& lock, double until_s) const {
  constexpr double kForever_s = 1e9;  // beyond this the clock's integers would overflow
  if (until_s > kForever_s) {
    woken.wait(lock);
  } else {
    woken.wait_until(lock, start + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(until_s)));
  }
}

// One rank's place in one group, and what its requests need of it; outlives the communicator while requests do.
struct Place {
  std::shared_ptr<Fabric> fabric;
  std::shared_ptr<Group> group;
  std::shared_ptr<const std::atomic<double>> longest_wait_s;  // the rank's deadline
  int rank = 0;                                               // in the group
  double credit_s = 0;                                        // how late the thread runs behind its virtual time

  std::size_t size() const { return group->members.size(); }
  std::list<std::shared_ptr<Transfer>>& channel(Side side, int peer) const {
    const int sender = side == Side::send ? rank : peer;
    const int receiver = side == Side::send ? peer : rank;
    return group->channels[static_cast<std::size_t>(sender) * size() + static_cast<std::size_t>(receiver)];
  }
  Port& port(int member) const {
    return fabric->ports[static_cast<std::size_t>(group->members[static_cast<std::size_t>(member)])];
  }
  std::condition_variable& woken(int member) const { return group->woken[static_cast<std::size_t>(member)]; }
};

// One side of a transfer.
class Message final : public Request {
 public:
  Message(std::shared_ptr<Place> place, Side side, int peer, std::shared_ptr<Transfer> transfer)
      : place_(std::move(place)), side_(side), peer_(peer), transfer_(std::move(transfer)) {}
  ~Message() override;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  void wait() override;

 private:
  void copy(Lock& lock);
  [[noreturn]] void throw_late(double waited_s) const;
  [[noreturn]] void throw_unequal() const;
  int world_rank(int member) const { return place_->group->members[static_cast<std::size_t>(member)]; }
  double end_s() const { return side_ == Side::send ? transfer_->left_s : transfer_->arrived_s; }

  std::shared_ptr<Place> place_;
  Side side_;
  int peer_;  // in the group
  std::shared_ptr<Transfer> transfer_;
  bool done_ = false;
};

void Message::wait() {
  if (done_) {
    return;
  }
  ask_for_exact_timers();
  Fabric& fabric = *place_->fabric;
  std::condition_variable& woken = place_->woken(place_->rank);
  Lock lock(fabric.mutex);
  const double entered_s = fabric.now_s();
  const double limit_s = entered_s + place_->longest_wait_s->load(std::memory_order_relaxed);
  for (;;) {
    if (transfer_->stage == Stage::copying) {
      woken.wait(lock);  // the peer is in our buffer: not even an abort may return before it has left
      continue;
    }
    fabric.throw_if_aborted();
    if (transfer_->stage == Stage::unequal) {
      throw_unequal();
    }
    if (transfer_->stage == Stage::matched) {
      copy(lock);
      continue;
    }
    const double end = transfer_->stage == Stage::copied ? end_s() : std::numeric_limits<double>::infinity();
    const double now_s = fabric.now_s();
    if (now_s >= end) {
      place_->credit_s = std::clamp(now_s - std::max(entered_s - place_->credit_s, end), 0.0, kMostCredit_s);
      done_ = true;
      return;
    }
    if (now_s >= limit_s) {
      throw_late(now_s - entered_s);
    }
    fabric.wait_until(woken, lock, std::min(end, limit_s));
  }
}

void Message::copy(Lock& lock) {
  Transfer& transfer = *transfer_;
  transfer.stage = Stage::copying;
  lock.unlock();
  if (!transfer.source.empty()) {
    std::memcpy(transfer.destination.data(), transfer.source.data(), transfer.source.size());
  }
  lock.lock();
  transfer.stage = Stage::copied;
  place_->woken(peer_).notify_all();
}

void Message::throw_unequal() const {
  const int sender = world_rank(side_ == Side::send ? place_->rank : peer_);
  const int receiver = world_rank(side_ == Side::send ? peer_ : place_->rank);
  throw Error(fmt::format("a message of {} bytes from rank {} met a receive of {} bytes on rank {}",
                          transfer_->source.size(), sender, transfer_->destination.size(), receiver));
}

void Message::throw_late(double waited_s) const {
  const bool send = side_ == Side::send;
  throw Error(fmt::format(
      "rank {} waited {:.1f} s to {} {} bytes {} rank {}: {}", world_rank(place_->rank), waited_s,
      send ? "send" : "receive", send ? transfer_->source.size() : transfer_->destination.size(), send ? "to" : "from",
      world_rank(peer_),
      transfer_->stage == Stage::copied ? "the link is slower than the deadline" : "the peer did not take part"));
}

Message::~Message() {
  if (done_) {
    return;
  }
  Lock lock(place_->fabric->mutex);
  while (transfer_->stage == Stage::copying) {
    place_->woken(place_->rank).wait(lock);
  }
  if (transfer_->stage == Stage::posted) {
    place_->channel(side_, peer_).remove(transfer_);
  }
  if (transfer_->stage == Stage::posted || transfer_->stage == Stage::matched) {
    transfer_->stage = Stage::withdrawn;
  }
}

class Member final : public Communicator {
 public:
  Member(TrafficLedger* ledger, std::shared_ptr<Place> place) : Communicator(ledger), place_(std::move(place)) {}
  int rank() const override { return place_->rank; }
  int size() const override { return static_cast<int>(place_->size()); }

 protected:
  std::unique_ptr<Request> start_send(int peer, std::span<const std::byte> bytes) override {
    return post(Side::send, peer, [&](Transfer& transfer) { transfer.source = bytes; });
  }
  std::unique_ptr<Request> start_receive(int peer, std::span<std::byte> bytes) override {
    return post(Side::receive, peer, [&](Transfer& transfer) { transfer.destination = bytes; });
  }

 private:
  template <class SetBuffer>
  std::unique_ptr<Request> post(Side side, int peer, const SetBuffer& set_buffer);

  std::shared_ptr<Place> place_;
};

template <class SetBuffer>
std::unique_ptr<Request> Member::post(Side side, int peer, const SetBuffer& set_buffer) {
  LAMINA_CHECK(peer >= 0 && peer < size() && peer != rank(), "rank {} of {} has no peer {}", rank(), size(), peer);
  Fabric& fabric = *place_->fabric;
  const Lock lock(fabric.mutex);
  fabric.throw_if_aborted();
  auto& channel = place_->channel(side, peer);
  const double posted_s = fabric.now_s() - place_->credit_s;
  std::shared_ptr<Transfer> transfer;
  if (!channel.empty() && channel.front()->first != side) {
    transfer = std::move(channel.front());
    channel.pop_front();
    set_buffer(*transfer);
    transfer->stage = transfer->source.size() == transfer->destination.size() ? Stage::matched : Stage::unequal;
    fabric.put_on_link(*transfer, place_->port(side == Side::send ? rank() : peer),
                       place_->port(side == Side::send ? peer : rank()), std::max(transfer->first_posted_s, posted_s));
    place_->woken(peer).notify_all();
  } else {
    transfer = std::make_shared<Transfer>();
    transfer->first = side;
    transfer->first_posted_s = posted_s;
    set_buffer(*transfer);
    channel.push_back(transfer);
  }
  return std::make_unique<Message>(place_, side, peer, std::move(transfer));
}

class Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<Fabric> fabric, int rank) : fabric_(std::move(fabric)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(fabric_->ports.size()); }
  std::string name() const override { return "threads"; }
  std::unique_ptr<Communicator> group(const std::vector<int>& members, CollectiveBackend collectives) override;
  TrafficLedger& ledger() override { return ledger_; }
  void abort(const std::string& reason) override;
  bool aborted() const override {
    const Lock lock(fabric_->mutex);
    return !fabric_->reason.empty();
  }
  void set_deadline(std::chrono::duration<double> longest_wait) override {
    longest_wait_s_->store(longest_wait.count(), std::memory_order_relaxed);
  }

 private:
  std::shared_ptr<Fabric> fabric_;
  int rank_;
  TrafficLedger ledger_;
  std::shared_ptr<std::atomic<double>> longest_wait_s_ =
      std::make_shared<std::atomic<double>>(std::numeric_limits<double>::infinity());
  std::map<std::vector<int>, int> asked_;  // how often for these members; guarded by the fabric's mutex
};

std::unique_ptr<Communicator> Endpoint::group(const std::vector<int>& members, CollectiveBackend collectives) {
  LAMINA_CHECK(collectives == CollectiveBackend::ring, "between threads there are no {} collectives",
               name_of(collectives));
  const int place = place_in_group(members, rank_, size());
  const Lock lock(fabric_->mutex);
  fabric_->throw_if_aborted();
  std::shared_ptr<Group>& group = fabric_->groups[{members, asked_[members]++}];
  if (!group) {
    group = std::make_shared<Group>(members);
  }
  return std::make_unique<Member>(&ledger_, std::make_shared<Place>(Place{fabric_, group, longest_wait_s_, place}));
}

void Endpoint::abort(const std::string& reason) {
  const Lock lock(fabric_->mutex);
  if (!fabric_->reason.empty()) {
    return;
  }
  fabric_->reason = reason.empty() ? "no reason given" : reason;
  for (auto& [key, group] : fabric_->groups) {
    for (std::condition_variable& woken : group->woken) {
      woken.notify_all();
    }
  }
}

}  // namespace

struct ThreadsFabric::Impl {
  std::shared_ptr<Fabric> fabric;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
};

ThreadsFabric::ThreadsFabric(int ranks, const EmulatedLink& link) : impl_(std::make_unique<Impl>()) {
  LAMINA_CHECK(ranks >= 1, "{} ranks asked for", ranks);
  LAMINA_CHECK(link.bandwidth_bits_per_s >= 0 && link.latency_s >= 0, "a link of {} bits/s and {} s",
               link.bandwidth_bits_per_s, link.latency_s);
  impl_->fabric = std::make_shared<Fabric>(ranks, link);
  for (int rank = 0; rank < ranks; ++rank) {
    impl_->endpoints.push_back(std::make_unique<Endpoint>(impl_->fabric, rank));
  }
}

ThreadsFabric::~ThreadsFabric() = default;

Transport& ThreadsFabric::endpoint(int rank) {
  LAMINA_CHECK(rank >= 0 && rank < static_cast<int>(impl_->endpoints.size()), "no rank {} among {}", rank,
               impl_->endpoints.size());
  return *impl_->endpoints[static_cast<std::size_t>(rank)];
}

std::string ThreadsFabric::abort_reason() const {
  const Lock lock(impl_->fabric->mutex);
  return impl_->fabric->reason;
}

}  // namespace lamina
