#include "impl/comm/mpi.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "impl/comm/launcher.h"
#include "impl/comm/look_pace.h"
#include "impl/comm/mpi_library.h"
#include "impl/comm/mpi_probe.h"

namespace lamina {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;
using Seconds = std::chrono::duration<double>;

Clock::duration ticks(double s) { return std::chrono::ceil<Clock::duration>(Seconds(s)); }

// Tags on the transport's own communicator. A group's messages carry the group's tag, which its first member draws
// from a range of its own and tells the others.
constexpr int kGroupTag = 0;
constexpr int kHeartbeatTag = 1;
constexpr int kLeavingTag = 2;
constexpr int kFailureTag = 3;
constexpr int kCommunicatorTag = 4;
constexpr int kFirstGroupTag = 16;
constexpr int kGroupsPerLeader = 1024;

// What a heartbeat says.
constexpr char kAlive = 0;
constexpr char kGoodbye = 1;

constexpr int kAbortExitCode = 3;
// For the failing rank to write down that it failed, and for the launcher to pass on the cause before its own words.
constexpr double kAbortGrace_s = 0.5;
constexpr double kTelling_s = 0.3;  // at most, for telling rank 0 of a failure
constexpr double kHeard_s = 2;  // after this long, who heard of a failure no longer relies on the failed rank's abort
constexpr double kStuck_s = 3;  // after this long inside one MPI call, an abort no longer waits for it
constexpr double kLeft_s = 2;   // messages of a rank that has left still arrive for this long
constexpr double kTidings_s = 0.01;  // between looks for heartbeats and their like: every one asks the system once more
constexpr double kIdleLook_s = 0.05;  // between looks while only heartbeats are under way

// What the requests of one communicator have in common.
struct Place {
  std::vector<int> members;
  int rank = 0;  // in the group
  int tag = 0;
  MPI_Comm library = MPI_COMM_NULL;  // for MPI's own collectives; the progress thread's
  std::condition_variable woken;     // one of its messages ended, or something every wait must look at
};

// A message or something else of MPI's under way, shared by its request and the progress thread. Guarded by the
// engine's mutex.
struct Operation {
  enum class Kind : std::uint8_t { send, receive, collective, communicator } kind = Kind::send;
  std::shared_ptr<Place> place;
  int peer = -1;  // world rank, of a message
  std::span<std::byte> bytes;
  CollectiveCall collective;     // the whole of it; its values are `bytes`
  std::int64_t pieces_left = 1;  // how many there are is known once MPI has them
  std::string error;             // of the first piece that failed
};

// "send 8 bytes to rank 1"
std::string describe(const Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::send:
      return fmt::format("send {} bytes to rank {}", operation.bytes.size(), operation.peer);
    case Operation::Kind::receive:
      return fmt::format("receive {} bytes from rank {}", operation.bytes.size(), operation.peer);
    case Operation::Kind::collective:
      return fmt::format("{} {} bytes by MPI with ranks [{}]", name_of(operation.collective.kind),
                         operation.bytes.size(), fmt::join(operation.place->members, ", "));
    case Operation::Kind::communicator:
      return fmt::format("make a communicator of ranks [{}]", fmt::join(operation.place->members, ", "));
  }
  return "?";
}

// Everything about MPI: one progress thread makes all calls, and everybody else posts to it and waits.
class Engine {
 public:
  explicit Engine(const MpiOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int most_groups() const { return most_groups_; }  // that one rank can be the first member of
  std::int64_t most_piece_bytes() const { return options_.most_piece_bytes; }
  const MpiNetwork& network() const { return network_; }
  void enlist(const std::shared_ptr<Place>& place);
  void retire(std::shared_ptr<Place> place);  // no operation of it follows
  std::shared_ptr<Operation> post(Operation operation);
  void wait(const Operation& operation);
  void give_up(const Operation& operation);
  void abort(const std::string& reason);
  void set_deadline(double longest_wait_s);
  void on_failure(std::function<void(const std::string&)> react);

 private:
  struct Piece {  // one request that MPI has
    std::shared_ptr<Operation> operation;
    std::int64_t bytes;
  };

  void run();
  void start();
  void enter_mpi();
  Clock::time_point stuck_at() const;
  bool look();
  void post_to_mpi(const std::shared_ptr<Operation>& operation);
  void post_message(const std::shared_ptr<Operation>& operation);
  void free_idle_communicators();
  bool brings_from_left(const Operation& operation) const;
  bool test_pieces();
  void keep_alive();
  void check_neighbour_lives() const;
  void beat(char byte);
  void expect_beat();
  void hear_beat();
  void expect_leaving();
  void hear_leaving();
  void say_leaving();
  bool everybody_leaves();
  void say_goodbye();
  void tell_first();
  void expect_failure();
  void hear_failure();
  void settle(const Piece& piece, const MPI_Status& status);
  std::optional<Clock::time_point> leavers_limit(const Operation& operation) const;
  void wake_all();
  void abort_locked(const std::string& reason);
  void fail_locked(const std::string& reason);
  double seconds_to_next_look() const;
  int left_neighbour() const { return (rank_ + size_ - 1) % size_; }

  const MpiOptions options_;
  int rank_ = 0;
  int size_ = 1;
  int most_groups_ = 0;
  std::string host_;
  MpiNetwork network_;
  const int exceptions_before_ = std::uncaught_exceptions();

  std::mutex mutex_;                 // guards what follows up to the thread's own part; not held during MPI calls
  std::condition_variable posted_;   // for the progress thread
  std::condition_variable outside_;  // the progress thread left MPI, or is ready
  bool initialised_ = false;         // MPI is; from here on it takes messages between all ranks to be ready
  bool ready_ = false;
  bool inside_ = false;  // the progress thread is in MPI, since:
  Clock::time_point entered_at_;
  bool frozen_ = false;    // buffers may be gone: MPI must not run any more
  bool given_up_ = false;  // buffers are gone
  bool telling_ = false;   // rank 0 is still to be told of the failure; until then all buffers stay
  bool heard_ = false;     // it was another rank that failed
  bool leaving_ = false;
  std::exception_ptr start_failure_;
  std::string reason_;
  std::function<void(const std::string&)> react_;
  Clock::time_point aborted_at_;
  double longest_wait_s_ = std::numeric_limits<double>::infinity();
  std::vector<std::shared_ptr<Operation>> fresh_;
  std::vector<std::shared_ptr<Place>> retired_;  // of groups that have ended, for the progress thread
  std::vector<std::weak_ptr<Place>> places_;
  std::vector<std::optional<Clock::time_point>> left_;  // by world rank: when we heard that it leaves

  // The progress thread's own.
  MPI_Comm world_ = MPI_COMM_NULL;
  std::vector<MPI_Request> requests_;  // pieces under way, beside:
  std::vector<Piece> under_way_;
  std::vector<std::shared_ptr<Place>> closing_;  // whose communicators are to be freed
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  LookPace pace_;
  std::int64_t bytes_under_way_ = 0;
  std::int64_t bytes_from_left_ = 0;  // of operations under way that bring data from the left neighbour
  Clock::time_point last_look_;
  Clock::time_point last_tidings_;
  char beat_out_ = 0;
  char beat_in_ = 0;
  MPI_Request beat_send_ = MPI_REQUEST_NULL;
  MPI_Request beat_receive_ = MPI_REQUEST_NULL;
  Clock::time_point last_beat_;
  Clock::time_point last_heard_;
  char leaving_byte_ = 0;
  char leaving_byte_out_ = 0;
  MPI_Request leaving_receive_ = MPI_REQUEST_NULL;
  std::vector<MPI_Request> leaving_sends_;
  std::array<char, 2048> failure_{};  // told or heard
  MPI_Request failure_receive_ = MPI_REQUEST_NULL;
  std::thread thread_;  // last: it uses all of the above
};

Engine::Engine(const MpiOptions& options) : options_(options), pace_(options.look_every_s) {
  static std::atomic<bool> started = false;
  LAMINA_CHECK(!started.exchange(true), "MPI can be started once in a process");
  LAMINA_CHECK(options.most_piece_bytes >= 1 && options.most_piece_bytes <= std::numeric_limits<int>::max(),
               "pieces of {} bytes", options.most_piece_bytes);
  thread_ = std::thread([this] { run(); });
  Lock lock(mutex_);
  outside_.wait(lock, [&] { return ready_ || initialised_; });
  if (!outside_.wait_for(lock, ticks(options.start_within_s), [&] { return ready_; })) {
    // MPI holds the progress thread, so this process just ends, and the launcher sees to the others.
    fmt::print(stderr,
               "lamina: rank {} of {}: the first messages have not come through within {} s: can all hosts "
               "reach each other by the network that MPI has chosen (for TCP: btl_tcp_if_include)?\n",
               rank_, size_, options.start_within_s);
    std::_Exit(kAbortExitCode);
  }
  if (start_failure_) {
    lock.unlock();
    thread_.join();
    std::rethrow_exception(start_failure_);
  }
}

Engine::~Engine() {
  if (std::uncaught_exceptions() > exceptions_before_) {
    abort("an exception left this rank's run");
  }
  Lock lock(mutex_);
  leaving_ = true;
  if (frozen_ && reason_.empty()) {
    abort_locked("a message was given up, and the run went on");
  }
  if (!reason_.empty()) {  // the progress thread ends the process, unless MPI holds it
    posted_.notify_all();
    outside_.wait_until(lock, std::max(stuck_at(), aborted_at_) + ticks(kAbortGrace_s), [] { return false; });
    std::_Exit(kAbortExitCode);
  }
  posted_.notify_all();
  lock.unlock();
  thread_.join();
}

void Engine::enlist(const std::shared_ptr<Place>& place) {
  const Lock lock(mutex_);
  std::erase_if(places_, [](const auto& one) { return one.expired(); });
  places_.push_back(place);
}

void Engine::retire(std::shared_ptr<Place> place) {
  const Lock lock(mutex_);
  retired_.push_back(std::move(place));
}

std::shared_ptr<Operation> Engine::post(Operation what) {
  auto operation = std::make_shared<Operation>(std::move(what));
  const Lock lock(mutex_);
  if (!reason_.empty()) {
    throw Aborted(reason_);
  }
  fresh_.push_back(operation);
  posted_.notify_one();
  return operation;
}

void Engine::wait(const Operation& operation) {
  constexpr double kForever_s = 1e9;
  Lock lock(mutex_);
  const auto entered = Clock::now();
  double longest_s = std::min(longest_wait_s_, kForever_s);
  if (operation.kind == Operation::Kind::communicator) {  // meanwhile no heartbeat is heard
    longest_s = std::min(longest_s, options_.silent_after_s - 2 * options_.heartbeat_every_s);
  }
  for (;;) {
    if (!operation.error.empty()) {
      throw Error(operation.error);
    }
    if (operation.pieces_left == 0) {
      return;
    }
    if (!reason_.empty()) {
      throw Aborted(reason_);
    }
    const auto now = Clock::now();
    const auto complain = [&](const char* why) {
      throw Error(fmt::format("rank {} waited {:.1f} s to {}: {}", rank_, Seconds(now - entered).count(),
                              describe(operation), why));
    };
    auto until = entered + ticks(longest_s);
    if (now >= until) {
      complain("the deadline has passed");
    }
    if (const auto limit = leavers_limit(operation)) {
      if (now >= *limit) {
        complain(operation.peer < 0 ? "one of them has ended its run" : "that rank has ended its run");
      }
      until = std::min(until, *limit);
    }
    operation.place->woken.wait_until(lock, until);
  }
}

// Until when what a partner that has left did before may still take effect. Of a collective the others may have all of
// its data still to move.
std::optional<Clock::time_point> Engine::leavers_limit(const Operation& operation) const {
  if (operation.peer >= 0) {
    const auto left = left_[static_cast<std::size_t>(operation.peer)];
    return left ? std::optional(*left + ticks(kLeft_s)) : std::nullopt;
  }
  std::optional<Clock::time_point> first;
  for (const int member : operation.place->members) {
    const auto left = left_[static_cast<std::size_t>(member)];
    if (left && (!first || *left < *first)) {
      first = left;
    }
  }
  const auto bytes = static_cast<double>(operation.place->members.size() * operation.bytes.size());
  return first ? std::optional(*first + ticks(kLeft_s + bytes / options_.slowest_bytes_per_s)) : std::nullopt;
}

// The buffer is about to be gone: MPI must not touch it, and MPI can neither be told to forget a message nor be kept
// from touching one buffer while it serves another.
void Engine::give_up(const Operation& operation) {
  Lock lock(mutex_);
  if (operation.pieces_left > 0) {
    frozen_ = true;
    outside_.wait_until(lock, stuck_at(), [&] { return !inside_ && !telling_; });
    given_up_ = true;
  }
}

void Engine::enter_mpi() {
  inside_ = true;
  entered_at_ = Clock::now();
}

// From when on nobody waits any longer for the progress thread to come out of MPI.
Clock::time_point Engine::stuck_at() const { return (inside_ ? entered_at_ : Clock::now()) + ticks(kStuck_s); }

void Engine::abort(const std::string& reason) {
  const Lock lock(mutex_);
  abort_locked(reason);
}

void Engine::abort_locked(const std::string& reason) {
  if (reason_.empty()) {
    fail_locked(reason.empty() ? "no reason given" : reason);
    telling_ = rank_ != 0 && !given_up_;
    fmt::print(stderr, "lamina: rank {} on {}: {}\n", rank_, host_, reason_);
    std::fflush(stderr);
  }
}

void Engine::fail_locked(const std::string& reason) {
  reason_ = reason;
  aborted_at_ = Clock::now();
  frozen_ = true;
  wake_all();
  posted_.notify_all();
  if (react_) {
    std::exchange(react_, nullptr)(reason_);
  }
}

void Engine::on_failure(std::function<void(const std::string&)> react) {
  const Lock lock(mutex_);
  react_ = std::move(react);
}

void Engine::set_deadline(double longest_wait_s) {
  const Lock lock(mutex_);
  longest_wait_s_ = longest_wait_s;
}

void Engine::wake_all() {
  for (const auto& one : places_) {
    if (const auto place = one.lock()) {
      place->woken.notify_all();
    }
  }
}

// ---- The progress thread ----

void Engine::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // ns: sleeps are as short as asked for
  try {
    start();
  } catch (...) {
    start_failure_ = std::current_exception();
  }
  Lock lock(mutex_);
  ready_ = true;
  outside_.notify_all();
  if (start_failure_) {
    lock.unlock();
    MPI_Finalize();
    return;
  }
  for (bool done = false; !done;) {
    if (!reason_.empty()) {
      if (std::exchange(telling_, false)) {
        enter_mpi();
        lock.unlock();
        tell_first();
        lock.lock();
        inside_ = false;
        outside_.notify_all();
      }
      posted_.wait_until(lock, aborted_at_ + ticks(heard_ ? kHeard_s : kAbortGrace_s), [] { return false; });
      lock.unlock();
      MPI_Abort(world_, kAbortExitCode);
      std::_Exit(kAbortExitCode);
    }
    if (frozen_) {
      posted_.wait(lock);  // for the abort that must follow
      continue;
    }
    enter_mpi();
    lock.unlock();
    std::string failure;
    try {
      done = look();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    inside_ = false;
    outside_.notify_all();
    if (!failure.empty()) {
      abort_locked(failure);
    } else if (!done && fresh_.empty() && !frozen_) {
      posted_.wait_for(lock, ticks(seconds_to_next_look()));
    }
  }
  lock.unlock();
  MPI_Comm_free(&world_);
  MPI_Finalize();
}

void Engine::start() {
  int provided = 0;
  // This thread alone calls MPI, but for an abort when it is stuck.
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  {
    const Lock lock(mutex_);
    initialised_ = true;
    outside_.notify_all();
  }
  check_library_fits_launcher(size_, launched_ranks());
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);

  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  host_ = host.data();
  int* tag_limit = nullptr;
  int known = 0;
  MPI_Comm_get_attr(world_, MPI_TAG_UB, static_cast<void*>(&tag_limit), &known);
  LAMINA_CHECK(known != 0 && (*tag_limit - kFirstGroupTag) / size_ >= 1, "{} ranks need more tags than MPI has", size_);
  most_groups_ = std::min(kGroupsPerLeader, (*tag_limit - kFirstGroupTag) / size_);

  network_ = ask_for_network();

  left_.resize(static_cast<std::size_t>(size_));
  last_look_ = last_heard_ = last_beat_ = Clock::now();
  if (size_ > 1) {
    expect_beat();
    expect_leaving();
    if (rank_ == 0) {
      expect_failure();
    }
  }
}

// One look at everything under way; true when all ranks have left.
bool Engine::look() {
  std::vector<std::shared_ptr<Operation>> fresh;
  bool leaving = false;
  {
    const Lock lock(mutex_);
    std::swap(fresh, fresh_);
    closing_.insert(closing_.end(), retired_.begin(), retired_.end());
    retired_.clear();
    leaving = leaving_;
  }
  for (const auto& operation : fresh) {
    post_to_mpi(operation);
  }
  constexpr int kMostTests = 4;  // one ended message often lets the next one on
  const std::int64_t bytes_before = bytes_under_way_;
  int tests = 0;
  while (tests < kMostTests && test_pieces()) {
    ++tests;
  }
  if (tests > 0) {
    pace_.ended(Clock::now(), bytes_before - bytes_under_way_, bytes_before);
  }
  free_idle_communicators();
  if (size_ == 1) {
    return leaving;
  }
  if (const auto now = Clock::now(); leaving || now - last_tidings_ > ticks(kTidings_s)) {
    last_tidings_ = now;
    keep_alive();
    hear_leaving();
    hear_failure();
  }
  if (leaving && leaving_sends_.empty()) {
    say_leaving();
  }
  if (leaving && everybody_leaves()) {
    say_goodbye();
    return true;
  }
  return false;
}

void Engine::post_to_mpi(const std::shared_ptr<Operation>& operation) {
  const std::size_t before = requests_.size();
  if (before == 0) {
    pace_.begins(Clock::now());
  }
  bytes_from_left_ += brings_from_left(*operation) ? std::ssize(operation->bytes) : 0;
  Place& place = *operation->place;
  if (operation->kind == Operation::Kind::communicator) {
    place.library = make_mpi_communicator(world_, place.members, kCommunicatorTag);
  } else if (operation->kind == Operation::Kind::collective) {
    const auto requests = start_mpi_collective(operation->collective, place.library, options_.most_piece_bytes);
    for (const MPI_Request request : requests) {
      requests_.push_back(request);
      under_way_.push_back({operation, std::ssize(operation->bytes) / std::ssize(requests)});
    }
  } else {
    post_message(operation);
  }
  for (std::size_t i = before; i < under_way_.size(); ++i) {
    bytes_under_way_ += under_way_[i].bytes;
  }
  const Lock lock(mutex_);
  operation->pieces_left = static_cast<std::int64_t>(requests_.size() - before);
  if (operation->pieces_left == 0) {
    place.woken.notify_all();
  }
}

void Engine::post_message(const std::shared_ptr<Operation>& operation) {
  const auto send = options_.rendezvous ? MPI_Issend : MPI_Isend;
  const std::int64_t all = std::ssize(operation->bytes);
  std::int64_t begin = 0;
  do {
    const std::int64_t bytes = std::min(options_.most_piece_bytes, all - begin);
    std::byte* const piece = operation->bytes.data() + begin;
    MPI_Request request = MPI_REQUEST_NULL;
    if (operation->kind == Operation::Kind::send) {
      check_mpi(
          send(piece, static_cast<int>(bytes), MPI_BYTE, operation->peer, operation->place->tag, world_, &request),
          "sending");
    } else {
      check_mpi(
          MPI_Irecv(piece, static_cast<int>(bytes), MPI_BYTE, operation->peer, operation->place->tag, world_, &request),
          "receiving");
    }
    requests_.push_back(request);
    under_way_.push_back({operation, bytes});
    begin += bytes;
  } while (begin < all);
}

// Of groups that have ended. By the standard all members free a communicator together; the libraries do not wait for
// it.
void Engine::free_idle_communicators() {
  std::erase_if(closing_, [&](const std::shared_ptr<Place>& place) {
    const auto uses_it = [&](const Piece& piece) { return piece.operation->place == place; };
    const bool idle = std::none_of(under_way_.begin(), under_way_.end(), uses_it);
    if (idle) {
      MPI_Comm_free(&place->library);
    }
    return idle;
  });
}

// True when something ended.
bool Engine::test_pieces() {
  if (requests_.empty()) {
    return false;
  }
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, ended_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) {
    check_mpi(code, "MPI_Testsome");
    for (int i = 0; i < count; ++i) {
      statuses_[static_cast<std::size_t>(i)].MPI_ERROR = MPI_SUCCESS;  // set by MPI only in the other case
    }
  }
  if (count <= 0) {
    return false;
  }
  std::int64_t bytes = 0;
  {
    const Lock lock(mutex_);
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const Piece& piece = under_way_[static_cast<std::size_t>(ended_[index])];
      bytes += piece.bytes;
      settle(piece, statuses_[index]);
    }
  }
  bytes_under_way_ -= bytes;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) {
      requests_[kept] = requests_[i];
      if (kept != i) {
        under_way_[kept] = std::move(under_way_[i]);
      }
      ++kept;
    }
  }
  requests_.resize(kept);
  under_way_.resize(kept);
  return true;
}

void Engine::settle(const Piece& piece, const MPI_Status& status) {
  Operation& operation = *piece.operation;
  --operation.pieces_left;
  int got = 0;
  MPI_Get_count(&status, MPI_BYTE, &got);
  if (operation.error.empty() && status.MPI_ERROR != MPI_SUCCESS) {
    operation.error =
        fmt::format("rank {} failed to {}: {}", rank_, describe(operation), mpi_error_text(status.MPI_ERROR));
  } else if (operation.error.empty() && operation.kind == Operation::Kind::receive && got != piece.bytes) {
    operation.error = fmt::format("a message of {} bytes from rank {} met a receive of {} bytes on rank {}", got,
                                  operation.peer, piece.bytes, rank_);
  }
  if (operation.pieces_left == 0 && brings_from_left(operation)) {
    bytes_from_left_ -= std::ssize(operation.bytes);
    last_heard_ = Clock::now();
  }
  if (operation.pieces_left == 0 || !operation.error.empty()) {
    operation.place->woken.notify_all();
  }
}

double Engine::seconds_to_next_look() const {
  if (requests_.empty()) {
    return kIdleLook_s;
  }
  const auto by_library = [](const Piece& piece) { return piece.operation->kind == Operation::Kind::collective; };
  if (std::any_of(under_way_.begin(), under_way_.end(), by_library)) {
    return options_.look_every_s;  // what MPI does with one, it does while we look
  }
  return pace_.next_s(Clock::now(), bytes_under_way_);
}

// Whether signs of life of the left neighbour may have to wait for what this operation brings.
bool Engine::brings_from_left(const Operation& operation) const {
  const auto& members = operation.place->members;
  return operation.kind == Operation::Kind::receive
             ? operation.peer == left_neighbour()
             : operation.kind == Operation::Kind::collective &&
                   std::count(members.begin(), members.end(), left_neighbour()) > 0;
}

// Each rank tells its right neighbour that it lives, and watches its left one.
void Engine::keep_alive() {
  const auto now = Clock::now();
  if (const auto gap = now - last_look_; gap > ticks(options_.heartbeat_every_s)) {
    last_heard_ += gap;  // we were the ones who slept
  }
  last_look_ = now;
  hear_beat();
  int ended = 0;
  check_mpi(MPI_Test(&beat_send_, &ended, MPI_STATUS_IGNORE), "MPI_Test");
  if (ended != 0 && now - last_beat_ > ticks(options_.heartbeat_every_s)) {
    last_beat_ = now;
    beat(kAlive);
  }
  check_neighbour_lives();
}

void Engine::check_neighbour_lives() const {
  const auto silent = Clock::now() - last_heard_;
  const double behind_data_s = static_cast<double>(bytes_from_left_) / options_.slowest_bytes_per_s;
  if (silent > ticks(options_.silent_after_s + behind_data_s)) {
    throw Error(fmt::format("rank {} has given no sign of life for {:.1f} s: it was stopped, or its machine is gone",
                            left_neighbour(), Seconds(silent).count()));
  }
}

void Engine::beat(char byte) {
  beat_out_ = byte;
  check_mpi(MPI_Isend(&beat_out_, 1, MPI_CHAR, (rank_ + 1) % size_, kHeartbeatTag, world_, &beat_send_), "MPI_Isend");
}

void Engine::expect_beat() {
  check_mpi(MPI_Irecv(&beat_in_, 1, MPI_CHAR, left_neighbour(), kHeartbeatTag, world_, &beat_receive_), "MPI_Irecv");
}

void Engine::hear_beat() {
  int ended = 0;
  check_mpi(MPI_Test(&beat_receive_, &ended, MPI_STATUS_IGNORE), "MPI_Test");
  if (ended != 0) {
    last_heard_ = Clock::now();
    if (beat_in_ == kAlive) {
      expect_beat();
    }  // else it was the neighbour's last, and the request stays null
  }
}

void Engine::expect_leaving() {
  check_mpi(MPI_Irecv(&leaving_byte_, 1, MPI_CHAR, MPI_ANY_SOURCE, kLeavingTag, world_, &leaving_receive_),
            "MPI_Irecv");
}

void Engine::hear_leaving() {
  for (int ended = 1; ended != 0;) {
    MPI_Status status;
    check_mpi(MPI_Test(&leaving_receive_, &ended, &status), "MPI_Test");
    if (ended != 0) {
      const Lock lock(mutex_);
      left_[static_cast<std::size_t>(status.MPI_SOURCE)] = Clock::now();
      wake_all();  // who waits for that rank now has a limit
      expect_leaving();
    }
  }
}

void Engine::say_leaving() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) {
      check_mpi(MPI_Isend(&leaving_byte_out_, 1, MPI_CHAR, peer, kLeavingTag, world_, &leaving_sends_.emplace_back()),
                "MPI_Isend");
    }
  }
}

bool Engine::everybody_leaves() {
  int sent = 0;
  check_mpi(MPI_Testall(static_cast<int>(leaving_sends_.size()), leaving_sends_.data(), &sent, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  const Lock lock(mutex_);
  return sent != 0 &&
         std::count_if(left_.begin(), left_.end(), [](const auto& at) { return at.has_value(); }) == size_ - 1;
}

// The last heartbeat each way, so that none is under way when MPI ends.
void Engine::say_goodbye() {
  bool said = false;
  int sent = 0;
  while (!said || sent == 0 || beat_receive_ != MPI_REQUEST_NULL) {
    check_mpi(MPI_Test(&beat_send_, &sent, MPI_STATUS_IGNORE), "MPI_Test");
    if (sent != 0 && !said) {
      said = true;
      sent = 0;
      beat(kGoodbye);
    }
    hear_beat();
    check_neighbour_lives();
    std::this_thread::sleep_for(ticks(options_.look_every_s));
  }
  for (MPI_Request* receive : {&leaving_receive_, &failure_receive_}) {
    if (*receive != MPI_REQUEST_NULL) {
      check_mpi(MPI_Cancel(receive), "MPI_Cancel");
      check_mpi(MPI_Wait(receive, MPI_STATUS_IGNORE), "MPI_Wait");
    }
  }
}

// All ranks' failures come together on rank 0, which keeps the result. Errors are of no interest: the job ends anyway.
void Engine::tell_first() {
  const std::size_t length = std::min(reason_.size(), failure_.size() - 1);  // the rest stays zeros
  std::copy_n(reason_.begin(), length, failure_.begin());
  MPI_Request request = MPI_REQUEST_NULL;
  int ended = MPI_Isend(failure_.data(), static_cast<int>(failure_.size()), MPI_CHAR, 0, kFailureTag, world_,
                        &request) == MPI_SUCCESS
                  ? 0
                  : 1;
  const auto until = Clock::now() + ticks(kTelling_s);
  while (ended == 0 && Clock::now() < until && MPI_Test(&request, &ended, MPI_STATUS_IGNORE) == MPI_SUCCESS) {
    std::this_thread::sleep_for(ticks(options_.look_every_s));
  }
}

void Engine::expect_failure() {
  check_mpi(MPI_Irecv(failure_.data(), static_cast<int>(failure_.size()), MPI_CHAR, MPI_ANY_SOURCE, kFailureTag, world_,
                      &failure_receive_),
            "MPI_Irecv");
}

void Engine::hear_failure() {
  int ended = 0;
  if (failure_receive_ != MPI_REQUEST_NULL) {
    check_mpi(MPI_Test(&failure_receive_, &ended, MPI_STATUS_IGNORE), "MPI_Test");
  }
  if (ended != 0) {
    const Lock lock(mutex_);
    if (reason_.empty()) {
      heard_ = true;
      fail_locked(failure_.data());
    }
  }
}

// ---- What the rest of the program sees ----

class Message : public Request {
 public:
  Message(Engine& engine, Operation operation) : engine_(engine), operation_(engine.post(std::move(operation))) {}
  ~Message() override {
    if (!done_) {
      engine_.give_up(*operation_);
    }
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  void wait() override {
    if (!done_) {
      engine_.wait(*operation_);
      done_ = true;
    }
  }

 protected:
  Engine& engine_;
  const std::shared_ptr<Operation> operation_;

 private:
  bool done_ = false;
};

// A collective by MPI.
class LibraryCall final : public Message {
 public:
  using Message::Message;
  void wait() override {
    Message::wait();
    if (!std::exchange(settled_, true)) {
      const Place& place = *operation_->place;
      settle_mpi_collective(operation_->collective, place.rank, static_cast<int>(place.members.size()),
                            engine_.most_piece_bytes());
    }
  }

 private:
  bool settled_ = false;
};

class Member final : public Communicator {
 public:
  Member(TrafficLedger* ledger, Engine& engine, std::shared_ptr<Place> place, CollectiveBackend collectives)
      : Communicator(ledger, collectives), engine_(engine), place_(std::move(place)) {}
  ~Member() override {
    if (collectives() == CollectiveBackend::library) {
      engine_.retire(place_);
    }
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  int rank() const override { return place_->rank; }
  int size() const override { return static_cast<int>(place_->members.size()); }

 protected:
  std::unique_ptr<Request> start_send(int peer, std::span<const std::byte> bytes) override {
    return post(Operation::Kind::send, peer,
                {const_cast<std::byte*>(bytes.data()), bytes.size()});  // MPI only reads it
  }
  std::unique_ptr<Request> start_receive(int peer, std::span<std::byte> bytes) override {
    return post(Operation::Kind::receive, peer, bytes);
  }
  std::unique_ptr<Request> start_collective(const CollectiveCall& whole) override {
    return std::make_unique<LibraryCall>(
        engine_,
        Operation{.kind = Operation::Kind::collective, .place = place_, .bytes = whole.values, .collective = whole});
  }

 private:
  std::unique_ptr<Request> post(Operation::Kind kind, int peer, std::span<std::byte> bytes) {
    LAMINA_CHECK(peer >= 0 && peer < size() && peer != rank(), "rank {} of {} has no peer {}", rank(), size(), peer);
    const int world_peer = place_->members[static_cast<std::size_t>(peer)];
    return std::make_unique<Message>(engine_,
                                     Operation{.kind = kind, .place = place_, .peer = world_peer, .bytes = bytes});
  }

  Engine& engine_;
  std::shared_ptr<Place> place_;
};

// What a group's first member tells the others.
struct GroupCard {
  std::int64_t tag = 0;
  std::uint64_t members_hash = 0;
  CollectiveBackend collectives = CollectiveBackend::ring;
};

std::uint64_t hash_of(const std::vector<int>& members) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a, a rank at a time
  for (const int member : members) {
    hash = (hash ^ static_cast<std::uint64_t>(member)) * 1099511628211ULL;
  }
  return hash;
}

class ProcessTransport final : public MpiTransport {
 public:
  explicit ProcessTransport(const MpiOptions& options) : engine_(options) {}
  int rank() const override { return engine_.rank(); }
  int size() const override { return engine_.size(); }
  std::string name() const override { return "mpi"; }
  const MpiNetwork& network() const override { return engine_.network(); }
  std::unique_ptr<Communicator> group(const std::vector<int>& members, CollectiveBackend collectives) override;
  TrafficLedger& ledger() override { return ledger_; }
  void abort(const std::string& reason) override { engine_.abort(reason); }
  void set_deadline(std::chrono::duration<double> longest_wait) override { engine_.set_deadline(longest_wait.count()); }
  void on_failure(std::function<void(const std::string& reason)> react) override {
    engine_.on_failure(std::move(react));
  }

 private:
  GroupCard agree(const std::vector<int>& members, CollectiveBackend collectives);
  void meet(const std::shared_ptr<Place>& place);

  TrafficLedger ledger_;
  int groups_led_ = 0;
  Engine engine_;
};

std::unique_ptr<Communicator> ProcessTransport::group(const std::vector<int>& members, CollectiveBackend collectives) {
  const auto place = std::make_shared<Place>();
  place->rank = place_in_group(members, rank(), size());
  place->members = members;
  place->tag = static_cast<int>(agree(members, collectives).tag);
  engine_.enlist(place);
  if (collectives == CollectiveBackend::library) {
    meet(place);
  }
  return std::make_unique<Member>(&ledger_, engine_, place, collectives);
}

// The making of a communicator blocks the progress threads of those who have come to it until all have, and a rank may
// come to its groups hours after another. So first all say that they are here, by messages that can be waited for.
void ProcessTransport::meet(const std::shared_ptr<Place>& place) {
  const auto exchange = [&](Operation::Kind kind) {
    std::vector<std::unique_ptr<Message>> messages;
    for (const int member : place->members) {
      if (member != rank() && (rank() == place->members[0] || member == place->members[0])) {
        messages.push_back(std::make_unique<Message>(engine_, Operation{.kind = kind, .place = place, .peer = member}));
      }
    }
    for (const auto& message : messages) {
      message->wait();
    }
  };
  const bool first = rank() == place->members[0];
  exchange(first ? Operation::Kind::receive : Operation::Kind::send);
  exchange(first ? Operation::Kind::send : Operation::Kind::receive);
  Message(engine_, {.kind = Operation::Kind::communicator, .place = place}).wait();
}

GroupCard ProcessTransport::agree(const std::vector<int>& members, CollectiveBackend collectives) {
  const auto place = std::make_shared<Place>();
  place->tag = kGroupTag;
  engine_.enlist(place);
  GroupCard card;
  std::vector<std::unique_ptr<Message>> messages;
  const auto start = [&](Operation::Kind kind, int peer) {
    const auto bytes = std::as_writable_bytes(std::span(&card, 1));
    messages.push_back(
        std::make_unique<Message>(engine_, Operation{.kind = kind, .place = place, .peer = peer, .bytes = bytes}));
  };
  if (rank() == members[0]) {
    LAMINA_CHECK(groups_led_ < engine_.most_groups(), "rank {} leads {} groups already", rank(), groups_led_);
    card.tag = kFirstGroupTag + std::int64_t{rank()} * engine_.most_groups() + groups_led_++;
    card.members_hash = hash_of(members);
    card.collectives = collectives;
    for (std::size_t i = 1; i < members.size(); ++i) {
      start(Operation::Kind::send, members[i]);
    }
  } else {
    start(Operation::Kind::receive, members[0]);
  }
  for (const auto& message : messages) {
    message->wait();
  }
  LAMINA_CHECK(card.members_hash == hash_of(members),
               "rank {} makes a group [{}] while its first member, rank {}, makes another", rank(),
               fmt::join(members, ", "), members[0]);
  LAMINA_CHECK(card.collectives == collectives,
               "rank {} makes the group [{}] for {} collectives, its first member, rank {}, for those of the {}",
               rank(), fmt::join(members, ", "), name_of(collectives), members[0], name_of(card.collectives));
  return card;
}

}  // namespace

std::unique_ptr<MpiTransport> make_mpi_transport(const MpiOptions& options) {
  return std::make_unique<ProcessTransport>(options);
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string_view version(text.data(), static_cast<std::size_t>(length));
  return std::string(version.substr(0, version.find(',')));  // the first words; the rest names the build machine
}

}  // namespace lamina
