#include "impl/comm/collectives.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "impl/kernels/convert.h"

namespace lamina {
namespace {

// Chunks in flight per direction. While one is summed the next ones are on the wire, so the link never waits for the
// sum, nor for a thread that wakes a little late.
constexpr std::int64_t kWindow = 8;
// Large enough that a message's own cost is small beside its transfer, small enough to be summed out of the cache.
constexpr std::int64_t kMostChunkBytes = Communicator::kWorkspaceBytes / kWindow;
constexpr std::int64_t kLeastChunkBytes = 16 << 10;

// A part is cut into kWindow chunks, or more where those were too large, or fewer where they were too small.
std::int64_t chunk_elements(std::int64_t part_elements, std::int64_t element_bytes, std::int64_t most_bytes) {
  const std::int64_t even = (part_elements + kWindow - 1) / kWindow;
  return std::clamp(even, kLeastChunkBytes / element_bytes, most_bytes / element_bytes);
}

// What one rank does in a ring collective: `steps` steps, in each of which it sends one part to the right and receives
// another from the left, every part cut into the same chunks. Chunk messages are numbered through all steps; message k
// sends what message k − chunks has received (and summed). Where Wire is not Real, what is sent is converted into the
// workspace first, and what is received from there.
template <class Real, class Wire>
class Ring {
 public:
  Ring(Communicator& group, CollectiveCall::Kind kind, std::span<Real> values, TrafficTag tag)
      : group_(group),
        values_(values),
        tag_(tag),
        reduce_steps_(kind == CollectiveCall::Kind::all_gather ? 0 : group.size() - 1),
        steps_(reduce_steps_ + (kind == CollectiveCall::Kind::reduce_scatter ? 0 : group.size() - 1)),
        part_(static_cast<std::int64_t>(values.size()) / group.size()),
        chunk_(chunk_elements(part_, sizeof(Wire), kConverts ? kMostChunkBytes / 2 : kMostChunkBytes)),
        chunks_((part_ + chunk_ - 1) / chunk_),
        window_(std::min(kWindow, chunks_)) {}

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
  static constexpr bool kConverts = !std::is_same_v<Real, Wire>;

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

  // Room in the workspace for message k's chunk, received in the first half and converted for sending in the second.
  std::span<Wire> scratch(std::int64_t k, std::int64_t half, std::size_t elements) const {
    const std::int64_t begin = (k % window_) * kMostChunkBytes + half * kMostChunkBytes / 2;
    return {reinterpret_cast<Wire*>(group_.workspace().data() + begin), elements};
  }
  std::span<Wire> arrives(std::int64_t k) const {
    if constexpr (!kConverts) {
      if (!sums(k)) {
        return received(k);
      }
    }
    return scratch(k, 0, received(k).size());
  }
  std::span<const Wire> departs(std::int64_t k) const {
    const std::span<Real> values = sent(k);
    if constexpr (kConverts) {
      const std::span<Wire> converted = scratch(k, 1, values.size());
      convert(values.data(), converted.data(), values.size());
      if (k / chunks_ == reduce_steps_) {
        convert(converted.data(), values.data(), values.size());  // a finished part: its owner keeps what others get
      }
      return converted;
    } else {
      return values;
    }
  }
  template <class From, class To>
  static void convert(const From* from, To* to, std::size_t elements) {
    kernels::convert_all(from, to, static_cast<std::int64_t>(elements), 1);
  }

  void start(std::int64_t k) {
    const int n = group_.size();
    auto& send = sends_[static_cast<std::size_t>(k % window_)];
    if (send) {
      send->wait();  // before the receive: with two ranks it may write where that send was reading
    }
    receives_[static_cast<std::size_t>(k % window_)] =
        group_.receive((group_.rank() + n - 1) % n, std::as_writable_bytes(arrives(k)));
    send = group_.send((group_.rank() + 1) % n, std::as_bytes(departs(k)), tag_);
  }

  void finish_receive(std::int64_t k) {
    receives_[static_cast<std::size_t>(k % window_)]->wait();
    const std::span<Real> to = received(k);
    const auto elements = static_cast<std::int64_t>(to.size());
    if constexpr (std::is_floating_point_v<Real>) {  // 16-bit numbers are gathered, never summed as they are
      if (sums(k)) {
        const kernels::AddTo<Real, Wire> add{.elements = elements, .addend = arrives(k).data(), .sum = to.data()};
        return kernels::launch_rows(add, kernels::chunks_of(elements), 1);
      }
    }
    if constexpr (kConverts) {
      convert(arrives(k).data(), to.data(), to.size());
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

template <class Real>
constexpr RealType real_type() {
  if constexpr (std::is_same_v<Real, double>) {
    return RealType::fp64;
  } else if constexpr (std::is_same_v<Real, float>) {
    return RealType::fp32;
  } else {
    return std::is_same_v<Real, Bf16> ? RealType::bf16 : RealType::fp16;
  }
}

template <class Real, class Wire>
void by_library(Communicator& group, CollectiveCall::Kind kind, std::span<Real> values, TrafficTag tag) {
  LAMINA_CHECK((std::is_same_v<Real, Wire>), "sums of {} values on a wire of {} are made by rings alone",
               name_of(real_type<Real>()), name_of(real_type<Wire>()));
  const std::int64_t once = std::ssize(values) / group.size() * (group.size() - 1) * std::int64_t{sizeof(Real)};
  group
      .collective({.kind = kind, .type = real_type<Real>(), .values = std::as_writable_bytes(values)},
                  kind == CollectiveCall::Kind::all_reduce ? 2 * once : once, tag)
      ->wait();
}

template <class Real, class Wire>
void collective(Communicator& group, CollectiveCall::Kind kind, std::span<Real> values, TrafficTag tag) {
  LAMINA_CHECK(std::ssize(values) % group.size() == 0,
               "a collective of {} elements over {} ranks needs a multiple of the ranks", values.size(), group.size());
  if (group.size() == 1 || values.empty()) {
    return;
  }
  group.collectives() == CollectiveBackend::library ? by_library<Real, Wire>(group, kind, values, tag)
                                                    : Ring<Real, Wire>(group, kind, values, tag).run();
}

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

template <class Real, class Wire>
void all_reduce(Communicator& group, std::span<Real> values, TrafficTag tag) {
  collective<Real, Wire>(group, CollectiveCall::Kind::all_reduce, values, tag);
}

template <class Real, class Wire>
void reduce_scatter(Communicator& group, std::span<Real> values, TrafficTag tag) {
  collective<Real, Wire>(group, CollectiveCall::Kind::reduce_scatter, values, tag);
}

template <class Real>
void all_gather(Communicator& group, std::span<Real> values, TrafficTag tag) {
  collective<Real, Real>(group, CollectiveCall::Kind::all_gather, values, tag);
}

void all_sum(Communicator& group, std::span<double> values, TrafficTag tag) {
  const std::size_t most =
      static_cast<std::size_t>(Communicator::kWorkspaceBytes) / sizeof(double) / static_cast<std::size_t>(group.size());
  LAMINA_CHECK(most > 0, "a control sum over {} ranks does not fit its workspace", group.size());
  for (std::size_t begin = 0; begin < values.size(); begin += most) {
    all_sum_block(group, values.subspan(begin, std::min(most, values.size() - begin)), tag);
  }
}

#define LAMINA_REDUCTIONS(Real, Wire)                                               \
  template void all_reduce<Real, Wire>(Communicator&, std::span<Real>, TrafficTag); \
  template void reduce_scatter<Real, Wire>(Communicator&, std::span<Real>, TrafficTag);
LAMINA_REDUCTIONS(double, double)
LAMINA_REDUCTIONS(float, float)
LAMINA_REDUCTIONS(float, Bf16)
LAMINA_REDUCTIONS(float, Fp16)
#undef LAMINA_REDUCTIONS

template void all_gather<double>(Communicator&, std::span<double>, TrafficTag);
template void all_gather<float>(Communicator&, std::span<float>, TrafficTag);
template void all_gather<Bf16>(Communicator&, std::span<Bf16>, TrafficTag);
template void all_gather<Fp16>(Communicator&, std::span<Fp16>, TrafficTag);

}  // namespace lamina
