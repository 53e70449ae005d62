#include "impl/comm/communicator.h"

#include <algorithm>
#include <numeric>

namespace lamina {

std::string_view name_of(TrafficKind kind) {
  switch (kind) {
    case TrafficKind::data_reduce:
      return "data_reduce";
    case TrafficKind::data_gather:
      return "data_gather";
    case TrafficKind::pipeline_send:
      return "pipeline_send";
    case TrafficKind::tensor:
      return "tensor";
    case TrafficKind::control:
      return "control";
  }
  return "?";
}

std::string_view name_of(CollectiveBackend collectives) {
  return collectives == CollectiveBackend::ring ? "ring" : "library";
}

std::string_view name_of(CollectiveCall::Kind kind) {
  switch (kind) {
    case CollectiveCall::Kind::all_reduce:
      return "all_reduce";
    case CollectiveCall::Kind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveCall::Kind::all_gather:
      return "all_gather";
  }
  return "?";
}

std::unique_ptr<Request> Communicator::collective(const CollectiveCall& call, std::int64_t algorithm_bytes,
                                                  TrafficTag tag) {
  LAMINA_CHECK(collectives_ == CollectiveBackend::library, "an {} by a library in a group that was made for rings",
               name_of(call.kind));
  ledger_->add(tag, algorithm_bytes);
  return start_collective(call);
}

std::unique_ptr<Request> Communicator::start_collective(const CollectiveCall& call) {
  throw Error(fmt::format("this transport has no library that makes an {}", name_of(call.kind)));
}

void TrafficLedger::add(TrafficTag tag, std::int64_t bytes) {
  bytes_[static_cast<std::size_t>(tag.kind)][static_cast<std::size_t>(tag.unit)].fetch_add(bytes,
                                                                                           std::memory_order_relaxed);
}

std::int64_t TrafficLedger::bytes(TrafficKind kind, UnitKind unit) const {
  return bytes_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(unit)].load(std::memory_order_relaxed);
}

std::int64_t TrafficLedger::bytes(TrafficKind kind) const {
  const auto& units = bytes_[static_cast<std::size_t>(kind)];
  return std::accumulate(units.begin(), units.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& unit) { return sum + unit.load(std::memory_order_relaxed); });
}

void TrafficLedger::reset() {
  for (auto& units : bytes_) {
    for (auto& unit : units) {
      unit.store(0, std::memory_order_relaxed);
    }
  }
}

int place_in_group(const std::vector<int>& members, int rank, int world_size) {
  const std::string list = fmt::format("group [{}] of {} ranks", fmt::join(members, ", "), world_size);
  for (const int member : members) {
    LAMINA_CHECK(member >= 0 && member < world_size, "{}: there is no rank {}", list, member);
    LAMINA_CHECK(std::count(members.begin(), members.end(), member) == 1, "{}: rank {} is there twice", list, member);
  }
  const auto place = std::find(members.begin(), members.end(), rank);
  LAMINA_CHECK(place != members.end(), "{}: rank {} is not a member", list, rank);
  return static_cast<int>(place - members.begin());
}

}  // namespace lamina
