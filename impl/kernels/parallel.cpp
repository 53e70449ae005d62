#include "impl/kernels/parallel.h"

#include <atomic>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "impl/base/error.h"

namespace lamina::kernels {
namespace {

// How often a thread looks before it sleeps: some 20 µs, longer than what lies between two loops of a step and shorter
// than what waking costs where it matters.
constexpr int kLooks = 1000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Which piece is next, and of how many, in one word: a piece is taken by one compare-and-swap.
struct Ticket {
  std::uint32_t pieces;
  std::uint32_t next;
};
constexpr std::uint64_t word_of(Ticket ticket) { return std::uint64_t{ticket.pieces} << 32 | ticket.next; }
constexpr Ticket ticket_of(std::uint64_t word) {
  return {.pieces = static_cast<std::uint32_t>(word >> 32), .next = static_cast<std::uint32_t>(word)};
}

class Helpers {
 public:
  explicit Helpers(int count) {
    for (int worker = 1; worker <= count; ++worker) {
      threads_.emplace_back([this, worker] { help(worker); });
    }
  }
  ~Helpers() {
    ending_ = true;
    ring();
  }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }

  void run(std::uint32_t pieces, PieceFunction function, const void* context) {
    function_ = function;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(word_of({.pieces = pieces, .next = 0}));
    ring();
    take_pieces(0);
    std::uint32_t done = done_.load(std::memory_order_acquire);
    for (int looks = 0; done < pieces; done = done_.load(std::memory_order_acquire)) {
      if (looks++ < kLooks) {
        pause();
      } else {
        done_.wait(done);
      }
    }
  }

 private:
  void ring() {
    bell_.fetch_add(1);
    bell_.notify_all();
  }

  void take_pieces(int worker) {
    std::uint64_t word = ticket_.load(std::memory_order_acquire);
    for (Ticket ticket = ticket_of(word); ticket.next < ticket.pieces; ticket = ticket_of(word)) {
      if (!ticket_.compare_exchange_weak(word, word_of({ticket.pieces, ticket.next + 1}), std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
        continue;
      }
      // Whatever was seen before: the piece is the present job's, and this stands still until the piece is done.
      function_(context_, ticket.next, worker);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == ticket.pieces) {
        done_.notify_one();
      }
      word = ticket_.load(std::memory_order_acquire);
    }
  }

  void help(int worker) {
    while (true) {
      const int rung = bell_.load();
      if (ending_) {
        return;
      }
      take_pieces(worker);
      for (int looks = 0; bell_.load(std::memory_order_relaxed) == rung; ++looks) {
        if (looks < kLooks) {
          pause();
        } else {
          bell_.wait(rung);
        }
      }
    }
  }

  PieceFunction function_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::uint32_t> done_{0};
  std::atomic<int> bell_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::jthread> threads_;  // last: they start when everything above is there, and end before it
};

}  // namespace

void run_pieces(std::int64_t pieces, int threads, PieceFunction function, const void* context) {
  LAMINA_CHECK(pieces <= std::numeric_limits<std::uint32_t>::max(), "{} pieces of work", pieces);
  thread_local std::unique_ptr<Helpers> helpers;
  if (!helpers || helpers->count() != threads - 1) {
    helpers.reset();
    helpers = std::make_unique<Helpers>(threads - 1);
  }
  helpers->run(static_cast<std::uint32_t>(pieces), function, context);
}

}  // namespace lamina::kernels
