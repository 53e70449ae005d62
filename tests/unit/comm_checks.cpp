#include "tests/unit/comm_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include "impl/comm/collectives.h"
#include "impl/kernels/convert.h"

namespace lamina {
namespace {

constexpr TrafficTag kTag{TrafficKind::data_reduce, UnitKind::layer};

std::vector<int> everybody(const Transport& transport) {
  std::vector<int> members(static_cast<std::size_t>(transport.size()));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// Between −1 and 1, with every bit of the significand in use, so that a sum in another order has other bits.
template <class Real>
Real value_of(int rank, std::size_t element) {
  std::uint64_t bits = static_cast<std::uint64_t>(element) * 64 + static_cast<std::uint64_t>(rank) + 1;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<Real>(static_cast<double>(static_cast<std::int64_t>(bits ^ (bits >> 31))) * 0x1p-63);
}

// Whole numbers, whose sums have the same bits in any order: that of a library is its own.
template <class Real>
Real whole_number_of(int rank, std::size_t element) {
  return std::round(value_of<Real>(rank, element) * 0x1p18F) + Real{0};  // no negative zero
}

template <class Real>
std::vector<Real> values_of(int rank, std::size_t elements, Real (*value)(int, std::size_t) = value_of<Real>) {
  std::vector<Real> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = value(rank, i);
  }
  return values;
}

// The sum over ranks in ring order: part p's begins with rank p + 1 and ends with rank p.
template <class Real>
Real ring_sum(int ranks, std::size_t elements, std::size_t element) {
  const int owner = static_cast<int>(element / (elements / static_cast<std::size_t>(ranks)));
  Real sum = value_of<Real>((owner + 1) % ranks, element);
  for (int step = 2; step <= ranks; ++step) {
    sum += value_of<Real>((owner + step) % ranks, element);
  }
  return sum;
}

template <class Real>
void expect_bits(Real got, Real expected, std::size_t element, std::string_view what) {
  LAMINA_CHECK(std::memcmp(&got, &expected, sizeof(Real)) == 0, "{}: element {} is {:.17g}, expected {:.17g}", what,
               element, got, expected);
}

void expect_equal(std::int64_t got, std::int64_t expected, std::string_view what) {
  LAMINA_CHECK(got == expected, "{}: {}, expected {}", what, got, expected);
}

std::byte letter(int from, int to, std::size_t message, std::size_t position) {
  return static_cast<std::byte>((static_cast<std::size_t>(from) * 101 + static_cast<std::size_t>(to) * 53 +
                                 message * 17 + position * 7 + position / 251) &
                                255);
}

// Every rank sends several messages of different sizes to every other one, all posted before any is waited for.
void all_pairs_in_order(Transport& transport) {
  const auto group = transport.group(everybody(transport));
  const std::array<std::size_t, 5> sizes{1, 0, 70001, 8, 300000};
  std::vector<std::vector<std::byte>> outgoing;
  std::vector<std::vector<std::byte>> incoming;
  std::vector<std::unique_ptr<Request>> requests;
  for (int peer = 0; peer < group->size(); ++peer) {
    for (std::size_t message = 0; peer != group->rank() && message < sizes.size(); ++message) {
      incoming.emplace_back(sizes[message], std::byte{0xEE});
      requests.push_back(group->receive(peer, incoming.back()));
      auto& bytes = outgoing.emplace_back(sizes[message]);
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = letter(group->rank(), peer, message, i);
      }
      requests.push_back(group->send(peer, bytes, kTag));
    }
  }
  for (const auto& request : requests) {
    request->wait();
  }
  std::size_t next = 0;
  for (int peer = 0; peer < group->size(); ++peer) {
    for (std::size_t message = 0; peer != group->rank() && message < sizes.size(); ++message, ++next) {
      for (std::size_t i = 0; i < sizes[message]; ++i) {
        const std::byte expected = letter(peer, group->rank(), message, i);
        LAMINA_CHECK(incoming[next][i] == expected, "message {} from {}: byte {} is {}, expected {}", message, peer, i,
                     std::to_integer<int>(incoming[next][i]), std::to_integer<int>(expected));
      }
    }
  }
  expect_equal(transport.ledger().bytes(kTag.kind), 370010 * (group->size() - 1), "bytes sent");
}

// Part sizes around the chunk sizes: nothing, one element, less than a chunk, one and a bit, a full window, and more
// (which takes long with many ranks).
std::vector<std::size_t> part_elements(const Communicator& group) {
  return group.size() <= 3 ? std::vector<std::size_t>{0, 1, 4097, 16411, 600011}
                           : std::vector<std::size_t>{0, 1, 7, 4096, 80021};
}

template <class Real>
void all_reduces(Communicator& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::size_t part : part_elements(group)) {
    const std::size_t elements = part * ranks;
    auto values = values_of<Real>(group.rank(), elements);
    all_reduce<Real>(group, values, kTag);
    for (std::size_t i = 0; i < elements; ++i) {
      expect_bits(values[i], ring_sum<Real>(group.size(), elements, i), i, "all_reduce");
    }
  }
}

template <class Real>
void reduce_scatters(Communicator& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::size_t part : part_elements(group)) {
    const std::size_t elements = part * ranks;
    auto values = values_of<Real>(group.rank(), elements);
    reduce_scatter<Real>(group, values, kTag);
    const std::size_t begin = part * static_cast<std::size_t>(group.rank());
    for (std::size_t i = begin; i < begin + part; ++i) {
      expect_bits(values[i], ring_sum<Real>(group.size(), elements, i), i, "reduce_scatter");
    }
  }
}

template <class Real>
void all_gathers(Communicator& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::size_t part : part_elements(group)) {
    std::vector<Real> values(part * ranks, Real{-5});
    const auto mine = values_of<Real>(group.rank(), values.size());
    const auto begin = static_cast<std::ptrdiff_t>(part) * group.rank();
    std::copy_n(mine.begin() + begin, part, values.begin() + begin);
    all_gather<Real>(group, values, kTag);
    for (std::size_t i = 0; i < values.size(); ++i) {
      expect_bits(values[i], value_of<Real>(static_cast<int>(i / part), i), i, "all_gather");
    }
  }
}

template <class Real>
void collectives(Transport& transport) {
  const auto group = transport.group(everybody(transport));
  all_reduces<Real>(*group);
  reduce_scatters<Real>(*group);
  all_gathers<Real>(*group);
}

template <class Real>
void library_reductions(Communicator& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  for (const std::size_t part : part_elements(group)) {
    const std::size_t elements = part * ranks;
    auto all = values_of<Real>(group.rank(), elements, whole_number_of<Real>);
    auto own = all;
    all_reduce<Real>(group, all, kTag);
    reduce_scatter<Real>(group, own, kTag);
    const std::size_t begin = part * static_cast<std::size_t>(group.rank());
    for (std::size_t i = 0; i < elements; ++i) {
      Real sum = 0;
      for (int rank = 0; rank < group.size(); ++rank) {
        sum += whole_number_of<Real>(rank, i);
      }
      expect_bits(all[i], sum, i, "all_reduce");
      if (i >= begin && i < begin + part) {
        expect_bits(own[i], sum, i, "reduce_scatter");
      }
    }
  }
}

template <class Real>
void library_collectives(Transport& transport) {
  const auto group = transport.group(everybody(transport), CollectiveBackend::library);
  library_reductions<Real>(*group);
  all_gathers<Real>(*group);
}

// What has 16 bits is gathered; sums of it are refused, and nothing is sent.
void library_of_16_bits(Transport& transport) {
  const auto group = transport.group(everybody(transport), CollectiveBackend::library);
  const auto ranks = static_cast<std::size_t>(group->size());
  const std::size_t part = 4097;
  std::vector<Bf16> gathered(part * ranks);
  const auto bits = [](std::size_t i) { return static_cast<std::uint16_t>(i * 7919); };
  for (std::size_t i = part * static_cast<std::size_t>(group->rank()), end = i + part; i < end; ++i) {
    gathered[i].bits = bits(i);
  }
  all_gather<Bf16>(*group, gathered, kTag);
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    expect_equal(gathered[i].bits, bits(i), "all_gather of 16 bits");
  }
  std::vector<float> values(8 * ranks);
  std::string said;
  try {
    all_reduce<float, Bf16>(*group, values, kTag);
  } catch (const Error& error) {
    said = error.what();
  }
  LAMINA_CHECK(ranks == 1 || said.find("on a wire of bf16 are made by rings alone") != std::string::npos,
               "a sum in 16 bits said '{}'", said);
}

template <class Wire>
float rounded(float value) {
  Wire narrow;
  kernels::convert_all(&value, &narrow, 1, 1);
  kernels::convert_all(&narrow, &value, 1, 1);
  return value;
}

// As ring_sum, in float, each partial sum rounded before it travels; the whole sum is not.
template <class Wire>
float narrow_ring_sum(int ranks, std::size_t elements, std::size_t element) {
  const int owner = static_cast<int>(element / (elements / static_cast<std::size_t>(ranks)));
  float sum = value_of<float>((owner + 1) % ranks, element);
  for (int step = 2; step <= ranks; ++step) {
    sum = rounded<Wire>(sum) + value_of<float>((owner + step) % ranks, element);
  }
  return sum;
}

// float gradients on a wire of 16 bits; what has 16 bits, gathered as it is.
template <class Wire>
void narrow_collectives(Transport& transport) {
  const auto group = transport.group(everybody(transport));
  const auto ranks = static_cast<std::size_t>(group->size());
  for (const std::size_t part : part_elements(*group)) {
    const std::size_t elements = part * ranks;
    const std::size_t begin = part * static_cast<std::size_t>(group->rank());
    auto all = values_of<float>(group->rank(), elements);
    auto own = all;
    std::vector<Wire> gathered(elements);
    kernels::convert_all(all.data() + begin, gathered.data() + begin, static_cast<std::int64_t>(part), 1);
    transport.ledger().reset();
    all_reduce<float, Wire>(*group, all, kTag);
    expect_equal(transport.ledger().bytes(TrafficKind::data_reduce), static_cast<std::int64_t>(4 * part * (ranks - 1)),
                 "all_reduce bytes");
    reduce_scatter<float, Wire>(*group, own, kTag);
    expect_equal(transport.ledger().bytes(TrafficKind::data_reduce), static_cast<std::int64_t>(6 * part * (ranks - 1)),
                 "bytes of both");
    all_gather<Wire>(*group, gathered, {TrafficKind::data_gather, UnitKind::layer});
    expect_equal(transport.ledger().bytes(TrafficKind::data_gather), static_cast<std::int64_t>(2 * part * (ranks - 1)),
                 "all_gather bytes");
    for (std::size_t i = 0; i < elements; ++i) {
      const float sum = narrow_ring_sum<Wire>(group->size(), elements, i);
      expect_bits(all[i], ranks > 1 ? rounded<Wire>(sum) : sum, i, "narrow all_reduce");  // the same on every rank
      if (i >= begin && i < begin + part) {
        expect_bits(own[i], sum, i, "narrow reduce_scatter");
      }
      float value = 0;
      kernels::convert_all(&gathered[i], &value, 1, 1);
      expect_bits(value, rounded<Wire>(value_of<float>(static_cast<int>(i / part), i)), i, "narrow all_gather");
    }
  }
  transport.ledger().reset();
}

void control_sums(Transport& transport) {
  const auto group = transport.group(everybody(transport));
  for (const std::size_t count : {0UL, 1UL, 3UL, 40009UL}) {
    auto values = values_of<double>(group->rank(), count);
    all_sum(*group, values, kTag);
    for (std::size_t i = 0; i < count; ++i) {
      double expected = 0;
      for (int rank = 0; rank < group->size(); ++rank) {
        expected += value_of<double>(rank, i);
      }
      expect_bits(values[i], expected, i, "all_sum");
    }
  }
}

void odd_sizes_are_refused(Transport& transport) {
  const auto group = transport.group(everybody(transport));
  if (group->size() == 1) {
    return;  // every number is a multiple of one
  }
  std::vector<float> values(static_cast<std::size_t>(group->size()) * 3 + 1);
  bool refused = false;
  try {
    all_reduce<float>(*group, values, kTag);
  } catch (const Error&) {
    refused = true;
  }
  LAMINA_CHECK(refused, "an all_reduce of {} elements over {} ranks went through", values.size(), group->size());
}

// The bytes that one rank sends, as numbers: 840 floats (3360 bytes) and 3 control values (24 bytes).
struct SentBytes {
  int ranks;
  std::int64_t all_reduce;
  std::int64_t half;  // reduce_scatter, all_gather
  std::int64_t all_sum;
};
constexpr std::array<SentBytes, 5> kSentBytes{
    {{1, 0, 0, 0}, {2, 3360, 1680, 24}, {3, 4480, 2240, 48}, {5, 5376, 2688, 96}, {8, 5880, 2940, 168}}};

template <CollectiveBackend made_by>
void traffic_is_counted(Transport& transport) {
  const auto group = transport.group(everybody(transport), made_by);
  for (const SentBytes& sent : kSentBytes) {
    if (sent.ranks != group->size()) {
      continue;
    }
    auto floats = values_of<float>(group->rank(), 840);
    auto doubles = values_of<double>(group->rank(), 3);
    all_reduce<float>(*group, floats, {TrafficKind::data_reduce, UnitKind::layer});
    reduce_scatter<float>(*group, floats, {TrafficKind::data_reduce, UnitKind::head});
    all_gather<float>(*group, floats, {TrafficKind::data_gather, UnitKind::embedding});
    all_sum(*group, doubles, {TrafficKind::control, UnitKind::layer});
    TrafficLedger& ledger = transport.ledger();
    expect_equal(ledger.bytes(TrafficKind::data_reduce, UnitKind::layer), sent.all_reduce, "all_reduce bytes");
    expect_equal(ledger.bytes(TrafficKind::data_reduce, UnitKind::head), sent.half, "reduce_scatter bytes");
    expect_equal(ledger.bytes(TrafficKind::data_reduce), sent.all_reduce + sent.half, "bytes of both");
    expect_equal(ledger.bytes(TrafficKind::data_gather, UnitKind::embedding), sent.half, "all_gather bytes");
    expect_equal(ledger.bytes(TrafficKind::control), sent.all_sum, "all_sum bytes");
    expect_equal(ledger.bytes(TrafficKind::pipeline_send) + ledger.bytes(TrafficKind::tensor), 0, "other bytes");
    ledger.reset();
    expect_equal(ledger.bytes(TrafficKind::data_reduce), 0, "bytes after reset");
    return;
  }
  throw Error(fmt::format("no expected bytes for {} ranks", group->size()));
}

// Two groups of everybody (one of them in reverse) and one of the rank's own half, each used by a thread of its own,
// all at once; what one group sends must not turn up in another.
template <CollectiveBackend made_by>
void groups_at_once(Transport& transport) {
  std::vector<int> all = everybody(transport);
  const auto straight = transport.group(all, made_by);
  const auto again = transport.group(all);
  std::vector<int> reversed(all.rbegin(), all.rend());
  const auto backwards = transport.group(reversed, made_by);
  std::vector<int> half;
  for (const int rank : all) {
    if (rank % 2 == transport.rank() % 2) {
      half.push_back(rank);
    }
  }
  const auto mine = transport.group(half, made_by);
  expect_equal(backwards->rank(), transport.size() - 1 - transport.rank(), "rank in the reversed group");
  expect_equal(mine->rank(), transport.rank() / 2, "rank in the half");

  std::array<std::exception_ptr, 4> failures;
  {
    std::vector<std::jthread> threads;
    int index = 0;
    for (Communicator* group : {straight.get(), again.get(), backwards.get(), mine.get()}) {
      threads.emplace_back([group, index, &failures] {
        try {
          for (int turn = 0; turn < 20; ++turn) {
            const std::size_t elements = static_cast<std::size_t>(group->size()) * 5003;
            std::vector<double> values(elements);
            for (std::size_t i = 0; i < elements; ++i) {
              values[i] = 1e9 * index + 1e7 * turn + 1e6 * group->rank() + static_cast<double>(i);
            }
            all_reduce<double>(*group, values, kTag);
            for (std::size_t i = 0; i < elements; ++i) {
              const int n = group->size();
              expect_bits(values[i], n * (1e9 * index + 1e7 * turn + static_cast<double>(i)) + 1e6 * (n * (n - 1) / 2),
                          i, "a group beside others");
            }
          }
        } catch (...) {
          failures[static_cast<std::size_t>(index)] = std::current_exception();
        }
      });
      ++index;
    }
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

// A receive of another size than was sent is an error where it is received, not a message cut short.
void wrong_size_is_an_error(Transport& transport) {
  if (transport.size() < 2 || transport.rank() > 1) {
    return;
  }
  const auto group = transport.group({0, 1});
  std::vector<std::byte> bytes(transport.rank() == 0 ? 16 : 24);
  std::string said;
  try {
    if (transport.rank() == 0) {
      group->send(1, bytes, kTag)->wait();
    } else {
      group->receive(0, bytes)->wait();
    }
  } catch (const Error& error) {
    said = error.what();
  }
  LAMINA_CHECK(transport.rank() == 0 ||
                   (said.find("16 bytes") != std::string::npos && said.find("24 bytes") != std::string::npos),
               "a receive of 24 bytes for a message of 16 said '{}'", said);
}

void bad_groups_are_refused(Transport& transport) {
  const int rank = transport.rank();
  const int size = transport.size();
  for (const std::vector<int>& members : {std::vector<int>{rank, size}, {rank, rank}, {-1, rank}, {}}) {
    bool refused = false;
    try {
      transport.group(members);
    } catch (const Error&) {
      refused = true;
    }
    LAMINA_CHECK(refused, "a group [{}] of {} ranks was made", fmt::join(members, ", "), size);
  }
}

constexpr std::array kChecks{
    CommCheck{"all_pairs_in_order", all_pairs_in_order},
    CommCheck{"collectives_float", collectives<float>},
    CommCheck{"collectives_double", collectives<double>},
    CommCheck{"collectives_bf16", narrow_collectives<Bf16>},
    CommCheck{"collectives_fp16", narrow_collectives<Fp16>},
    CommCheck{"control_sums", control_sums},
    CommCheck{"odd_sizes_are_refused", odd_sizes_are_refused},
    CommCheck{"traffic_is_counted", traffic_is_counted<CollectiveBackend::ring>},
    CommCheck{"groups_at_once", groups_at_once<CollectiveBackend::ring>},
    CommCheck{"wrong_size_is_an_error", wrong_size_is_an_error},
    CommCheck{"bad_groups_are_refused", bad_groups_are_refused},
};

// The request of a collective may outlive its group.
void library_request_outlives_group(Transport& transport) {
  auto group = transport.group(everybody(transport), CollectiveBackend::library);
  if (group->size() == 1) {
    return;
  }
  std::vector<double> values(static_cast<std::size_t>(group->size()) * 200'000, 1.0);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const auto request = group->collective({.type = RealType::fp64, .values = bytes}, 0, kTag);
  const double sum = group->size();
  group.reset();
  request->wait();
  for (std::size_t i = 0; i < values.size(); ++i) {
    expect_bits(values[i], sum, i, "an all_reduce whose group has ended");
  }
}

constexpr std::array kLibraryChecks{
    CommCheck{"library_collectives_float", library_collectives<float>},
    CommCheck{"library_collectives_double", library_collectives<double>},
    CommCheck{"library_of_16_bits", library_of_16_bits},
    CommCheck{"library_traffic_is_counted", traffic_is_counted<CollectiveBackend::library>},
    CommCheck{"library_request_outlives_group", library_request_outlives_group},
    CommCheck{"library_groups_at_once", groups_at_once<CollectiveBackend::library>},
};

}  // namespace

std::span<const CommCheck> comm_checks() { return kChecks; }
std::span<const CommCheck> library_checks() { return kLibraryChecks; }

}  // namespace lamina
