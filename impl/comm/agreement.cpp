#include "impl/comm/agreement.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "impl/comm/collectives.h"

namespace lamina {
namespace {

using Hash = std::array<char, 64>;  // padded with zeros

std::vector<Hash> everybodys(Transport& transport, const Hash& mine) {
  std::vector<int> all(static_cast<std::size_t>(transport.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto group = transport.group(all);
  const int n = group->size();
  std::vector<Hash> hashes(all.size());
  const auto of = [&](int rank) { return std::span(hashes).subspan(static_cast<std::size_t>((rank + n) % n), 1); };
  of(group->rank())[0] = mine;
  for (int step = 0; step < n - 1; ++step) {
    const auto receive =
        group->receive((group->rank() + n - 1) % n, std::as_writable_bytes(of(group->rank() - 1 - step)));
    const auto send = group->send((group->rank() + 1) % n, std::as_bytes(of(group->rank() - step)),
                                  {TrafficKind::control, UnitKind::layer});
    receive->wait();
    send->wait();
  }
  return hashes;
}

}  // namespace

void check_same_everywhere(Transport& transport, std::string_view name, std::string_view hash) {
  Hash mine{};
  LAMINA_CHECK(hash.size() <= mine.size(), "a hash of {} characters, at most {} fit", hash.size(), mine.size());
  std::copy(hash.begin(), hash.end(), mine.begin());
  const std::vector<Hash> hashes = everybodys(transport, mine);
  std::vector<std::size_t> others;
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) {
      others.push_back(rank);
    }
  }
  if (!others.empty()) {
    const auto text = [](const Hash& h) { return std::string(h.begin(), std::find(h.begin(), h.end(), '\0')); };
    throw UsageError(fmt::format("the ranks were started with different {}s: {} {} {} {}, rank 0 has {}", name,
                                 others.size() == 1 ? "rank" : "ranks", fmt::join(others, ", "),
                                 others.size() == 1 ? "has" : "have", text(hashes[others.front()]), text(hashes[0])));
  }
}

}  // namespace lamina
