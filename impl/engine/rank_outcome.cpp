#include "impl/engine/rank_outcome.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>

#include "impl/base/error.h"

namespace lamina {
namespace {

class Packer {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
  void put_all(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put_text(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, next(1, sizeof value), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> get_all() {
    const auto count = get<std::size_t>();
    std::vector<T> values;
    const char* from = next(count, sizeof(T));
    values.resize(count);
    if (count > 0) {
      std::memcpy(values.data(), from, count * sizeof(T));
    }
    return values;
  }
  std::string get_text() {
    const auto length = get<std::size_t>();
    return {next(length, 1), length};
  }
  void finish() const { LAMINA_CHECK(at_ == bytes_.size(), "{} bytes left over", bytes_.size() - at_); }

 private:
  const char* next(std::size_t count, std::size_t size) {
    LAMINA_CHECK(count <= (bytes_.size() - at_) / size, "{} elements of {} bytes do not fit into {}", count, size,
                 bytes_.size() - at_);
    const char* from = bytes_.data() + at_;
    at_ += count * size;
    return from;
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

StepRecord combine(std::span<const RankStep> ranks) {
  StepRecord record;
  record.has_loss = false;
  for (const RankStep& rank : ranks) {
    record.rank_time_s.push_back(rank.time_s);
    record.rank_exposed_s.push_back(rank.exposed_s);
    record.rank_traffic.push_back(rank.traffic);
    record.gradient_norm = rank.gradient_norm;
    record.skipped = rank.skipped;
    record.loss_scale = rank.loss_scale;
    if (rank.has_loss) {
      record.has_loss = true;
      record.loss =
          rank.counted_targets > 0 ? rank.loss_sum / rank.counted_targets : std::numeric_limits<double>::quiet_NaN();
      record.counted_targets = static_cast<std::int64_t>(rank.counted_targets);
    }
  }
  return record;
}

TrainOutcome assemble(const Plan& plan, std::vector<RankOutcome> ranks, RanksAre ranks_are) {
  TrainOutcome outcome;
  std::vector<RankStep> of_step(ranks.size());
  for (std::size_t step = 0; step < ranks.front().steps.size(); ++step) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      of_step[rank] = ranks[rank].steps.at(step);
    }
    outcome.steps.push_back(combine(of_step));
  }
  outcome.collectives = ranks.front().collectives;
  std::set<Unit> built;
  for (RankOutcome& rank : ranks) {
    outcome.rank_memory.push_back(rank.memory);
    outcome.resident_set_growth_bytes.push_back(rank.resident_set_growth_bytes);
    outcome.trace.insert(outcome.trace.end(), rank.trace.begin(), rank.trace.end());
    built.insert(rank.units.begin(), rank.units.end());
    if (ranks_are == RanksAre::processes) {
      outcome.rank_wire.push_back(std::move(rank.wire));
    }
  }
  if (ranks_are == RanksAre::threads) {  // of one process, each of them measured the whole
    auto& growth = outcome.resident_set_growth_bytes;
    growth = {*std::max_element(growth.begin(), growth.end())};
  }
  for (const Unit unit : built) {
    outcome.layers_built += unit.kind == UnitKind::layer ? 1 : 0;
    outcome.parameters_built += unit_parameters(plan.model, unit);
  }
  return outcome;
}

std::string pack(const RankOutcome& outcome) {
  Packer packer;
  packer.put_all(outcome.steps);
  packer.put(outcome.memory);
  packer.put_all(outcome.units);
  packer.put_all(outcome.trace);
  packer.put(outcome.collectives);
  packer.put(outcome.resident_set_growth_bytes);
  packer.put(outcome.wire.size());
  for (const PortBytes& port : outcome.wire) {
    packer.put_text(port.port);
    packer.put(port.sent);
    packer.put(port.received);
  }
  return packer.take();
}

RankOutcome unpack(const std::string& bytes) {
  Unpacker unpacker(bytes);
  RankOutcome outcome;
  outcome.steps = unpacker.get_all<RankStep>();
  outcome.memory = unpacker.get<RankMemory>();
  outcome.units = unpacker.get_all<Unit>();
  outcome.trace = unpacker.get_all<TraceEvent>();
  outcome.collectives = unpacker.get<CollectiveBackend>();
  outcome.resident_set_growth_bytes = unpacker.get<std::int64_t>();
  const auto ports = unpacker.get<std::size_t>();
  for (std::size_t i = 0; i < ports; ++i) {
    PortBytes& port = outcome.wire.emplace_back();
    port.port = unpacker.get_text();
    port.sent = unpacker.get<std::int64_t>();
    port.received = unpacker.get<std::int64_t>();
  }
  unpacker.finish();
  return outcome;
}

}  // namespace lamina
