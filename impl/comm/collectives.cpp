#include "impl/comm/collectives.h"

#include <algorithm>
#include <array>

namespace lamina {
namespace {

// Chunks in flight per direction. While one is summed the next ones are on the wire, so the link never waits for the
// sum, nor for a thread that wakes a little late.
constexpr std::int64_t kWindow = 8;
// Large enough that a message's own cost is small beside its transfer, small enough to be summed out of the cache.
constexpr std::int64_t kMostChunkBytes = Communicator::kWorkspaceBytes / kWindow;
constexpr std::int64_t kLeastChunkBytes = 16 << 10;

// A part is cut into kWindow chunks, or more where those were too large, or fewer where they were too small.
std::int64_t chunk_elements(std::int64_t part_elements, std::int64_t element_bytes) {
  const std::int64_t even = (part_elements + kWindow - 1) / kWindow;
  return std::clamp(even, kLeastChunkBytes / element_bytes, kMostChunkBytes / element_bytes);
}

// What one rank does in a ring collective: `steps` steps, in each of which it sends one part to the right and receives
// another from the left, every part cut into the same chunks. Chunk messages are numbered through all steps; message k
// sends what message k − chunks has received (and summed).
template <class Real>
class Ring {
 public:
  Ring(Communicator& group, std::span<Real> values, bool reduces, bool gathers, TrafficTag tag)
      : group_(group),
        values_(values),
        tag_(tag),
        reduce_steps_(reduces ? group.size() - 1 : 0),
        steps_(reduce_steps_ + (gathers ? group.size() - 1 : 0)),
        part_(static_cast<std::int64_t>(values.size()) / group.size()),
        chunk_(chunk_elements(part_, sizeof(Real))),
        chunks_((part_ + chunk_ - 1) / chunk_),
        window_(std::min(kWindow, chunks_)) {
    LAMINA_CHECK(static_cast<std::int64_t>(values.size()) == part_ * group.size(),
                 "a collective of {} elements over {} ranks needs a multiple of the ranks", values.size(),
                 group.size());
  }

  void run() {
    const std::int64_t messages = steps_ * chunks_;
    for (std::int64_t k = 0; k < messages; ++k) {
      start(k);
      if (k >= window_ - 1) {
        finish_receive(k - window_ + 1);
      }
    }
    for (std::int64_t k = std::max<std::int64_t>(0, messages - window_ + 1); k < messages; ++k) {
      finish_receive(k);
    }
    for (auto& send : sends_) {
      if (send) {
        send->wait();
      }
    }
  }

 private:
  // Before step 0 a rank's contribution to part p starts its way at rank p + 1, so that the sum ends at rank p; then
  // the finished part goes round once more. A rank receives what its left neighbour sends.
  std::int64_t part_sent_by(std::int64_t rank, std::int64_t step) const {
    const std::int64_t n = group_.size();
    return (step < reduce_steps_ ? rank - 1 - step + n : rank - (step - reduce_steps_) + n) % n;
  }

  std::span<Real> chunk_of(std::int64_t part, std::int64_t chunk) const {
    const std::int64_t begin = chunk * chunk_;
    return values_.subspan(static_cast<std::size_t>(part * part_ + begin),
                           static_cast<std::size_t>(std::min(chunk_, part_ - begin)));
  }
  std::span<Real> sent(std::int64_t k) const { return chunk_of(part_sent_by(group_.rank(), k / chunks_), k % chunks_); }
  std::span<Real> received(std::int64_t k) const {
    const std::int64_t left = group_.rank() - 1 + group_.size();
    return chunk_of(part_sent_by(left, k / chunks_), k % chunks_);
  }
  bool sums(std::int64_t k) const { return k / chunks_ < reduce_steps_; }

  std::span<Real> scratch(std::int64_t k) const {
    const std::span<std::byte> room = group_.workspace().subspan((k % window_) * kMostChunkBytes, kMostChunkBytes);
    return {reinterpret_cast<Real*>(room.data()), received(k).size()};
  }

  void start(std::int64_t k) {
    const int n = group_.size();
    auto& send = sends_[static_cast<std::size_t>(k % window_)];
    if (send) {
      send->wait();  // before the receive: with two ranks it may write where that send was reading
    }
    receives_[static_cast<std::size_t>(k % window_)] =
        group_.receive((group_.rank() + n - 1) % n, std::as_writable_bytes(sums(k) ? scratch(k) : received(k)));
    send = group_.send((group_.rank() + 1) % n, std::as_bytes(sent(k)), tag_);
  }

  void finish_receive(std::int64_t k) {
    receives_[static_cast<std::size_t>(k % window_)]->wait();
    if (sums(k)) {
      const std::span<Real> sum = received(k);
      const Real* __restrict addend = scratch(k).data();
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = addend[i] + sum[i];
      }
    }
  }

  Communicator& group_;
  std::span<Real> values_;
  TrafficTag tag_;
  std::int64_t reduce_steps_;
  std::int64_t steps_;
  std::int64_t part_;    // elements
  std::int64_t chunk_;   // elements, the last one of a part may have fewer
  std::int64_t chunks_;  // a part
  std::int64_t window_;  // messages under way in each direction
  std::array<std::unique_ptr<Request>, kWindow> sends_;
  std::array<std::unique_ptr<Request>, kWindow> receives_;
};

// One block of all_sum, small enough that everybody's contribution fits into the workspace.
void all_sum_block(Communicator& group, std::span<double> values, TrafficTag tag) {
  const int n = group.size();
  const int rank = group.rank();
  const std::size_t count = values.size();
  const std::span<double> everybody{reinterpret_cast<double*>(group.workspace().data()),
                                    static_cast<std::size_t>(n) * count};
  const auto contribution_of = [&](int r) {
    return everybody.subspan(static_cast<std::size_t>((r + n) % n) * count, count);
  };
  std::copy(values.begin(), values.end(), contribution_of(rank).begin());
  for (int step = 0; step < n - 1; ++step) {
    const auto receive = group.receive((rank + n - 1) % n, std::as_writable_bytes(contribution_of(rank - 1 - step)));
    const auto send = group.send((rank + 1) % n, std::as_bytes(contribution_of(rank - step)), tag);
    receive->wait();
    send->wait();
  }
  std::fill(values.begin(), values.end(), 0.0);
  for (int r = 0; r < n; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      values[i] += contribution_of(r)[i];
    }
  }
}

}  // namespace

template <class Real>
void all_reduce(Communicator& group, std::span<Real> values, TrafficTag tag) {
  Ring<Real>(group, values, true, true, tag).run();
}

template <class Real>
void reduce_scatter(Communicator& group, std::span<Real> values, TrafficTag tag) {
  Ring<Real>(group, values, true, false, tag).run();
}

template <class Real>
void all_gather(Communicator& group, std::span<Real> values, TrafficTag tag) {
  Ring<Real>(group, values, false, true, tag).run();
}

void all_sum(Communicator& group, std::span<double> values, TrafficTag tag) {
  const std::size_t most =
      static_cast<std::size_t>(Communicator::kWorkspaceBytes) / sizeof(double) / static_cast<std::size_t>(group.size());
  LAMINA_CHECK(most > 0, "a control sum over {} ranks does not fit its workspace", group.size());
  for (std::size_t begin = 0; begin < values.size(); begin += most) {
    all_sum_block(group, values.subspan(begin, std::min(most, values.size() - begin)), tag);
  }
}

template void all_reduce<float>(Communicator&, std::span<float>, TrafficTag);
template void all_reduce<double>(Communicator&, std::span<double>, TrafficTag);
template void reduce_scatter<float>(Communicator&, std::span<float>, TrafficTag);
template void reduce_scatter<double>(Communicator&, std::span<double>, TrafficTag);
template void all_gather<float>(Communicator&, std::span<float>, TrafficTag);
template void all_gather<double>(Communicator&, std::span<double>, TrafficTag);

}  // namespace lamina
