#include "impl/harness/chrome_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "impl/base/error.h"
#include "impl/base/strict_json.h"

namespace lamina {
namespace {

constexpr double kMicroseconds = 1e6;

class Writer {
 public:
  Writer(std::string& events, std::int64_t first_process, std::int64_t& next_flow, const Schedule& schedule)
      : events_(events), first_process_(first_process), next_flow_(next_flow), schedule_(schedule) {}

  void name_ranks(std::string_view run) {
    for (std::int64_t rank = 0; rank < schedule_.plan.parallel.ranks(); ++rank) {
      add(R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":{}}}}})", process(rank),
          quoted(fmt::format("{}: rank {}", run, rank)));
      add(R"({{"ph":"M","name":"process_sort_index","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})", process(rank));
      name_streams(rank);
    }
  }

  void add_ops(const Trace& trace) {
    for (const TraceEvent& event : trace) {
      const Op& op = op_of(event);
      add(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"op":{},"step":{},)"
          R"("elements":{}}}}})",
          quoted(describe(op)), name_of(op.kind), process(event.rank), track(op), event.start_s * kMicroseconds,
          (event.end_s - event.start_s) * kMicroseconds, op.id, event.step, op.elements);
    }
  }

  // The n-th send of a rank to a peer meets the n-th receive of the peer from it, activations and gradients apart:
  // messages of a direction keep their order.
  void add_messages(const Trace& trace) {
    std::map<std::tuple<std::int64_t, std::int64_t, std::int32_t, bool>, std::array<std::vector<const TraceEvent*>, 2>>
        ends;
    for (const TraceEvent& event : trace) {
      const Op& op = op_of(event);
      if (op.kind == OpKind::send || op.kind == OpKind::receive) {
        const std::int64_t peer = peer_rank(event.rank, op.peer);
        const bool sends = op.kind == OpKind::send;
        ends[{sends ? event.rank : peer, sends ? peer : event.rank, event.step, is_backward(op.stream)}][sends ? 0 : 1]
            .push_back(&event);
      }
    }
    for (auto& [key, both] : ends) {
      for (auto& events : both) {
        std::sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) { return a->op < b->op; });
      }
      for (std::size_t i = 0; i < std::min(both[0].size(), both[1].size()); ++i) {
        add_arrow(*both[0][i], *both[1][i]);
      }
    }
  }

  void add_rings(const Trace& trace) {
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, const TraceEvent*> events;  // rank, step, op
    for (const TraceEvent& event : trace) {
      const OpKind kind = op_of(event).kind;
      if (is_collective(kind) && !is_control(kind)) {
        events[{event.rank, event.step, event.op}] = &event;
      }
    }
    for (const auto& [key, event] : events) {
      const auto& [rank, step, op] = key;
      const auto next = events.find({next_in_ring(rank), step, op});
      if (next != events.end() && next->second != event) {
        add_arrow(*event, *next->second);
      }
    }
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    events_ += events_.empty() ? "" : ",\n";
    fmt::format_to(std::back_inserter(events_), format, std::forward<Arguments>(arguments)...);
  }

  static std::string quoted(const std::string& text) { return Json(text).dump(); }
  std::int64_t process(std::int64_t rank) const { return first_process_ + rank; }
  static int track(const Op& op) { return static_cast<int>(op.stream); }

  const Program& program_of(std::int64_t rank) const {
    return schedule_.programs.at(static_cast<std::size_t>(coordinates_of(rank, schedule_.plan.parallel).pipeline));
  }
  const Op& op_of(const TraceEvent& event) const {
    return program_of(event.rank).ops.at(static_cast<std::size_t>(event.op));
  }

  std::int64_t peer_rank(std::int64_t rank, std::int64_t pipeline) const {
    Coordinates at = coordinates_of(rank, schedule_.plan.parallel);
    at.pipeline = pipeline;
    return rank_of(at, schedule_.plan.parallel);
  }
  std::int32_t next_in_ring(std::int64_t rank) const {
    Coordinates at = coordinates_of(rank, schedule_.plan.parallel);
    at.data = (at.data + 1) % schedule_.plan.parallel.data;
    return static_cast<std::int32_t>(rank_of(at, schedule_.plan.parallel));
  }

  void name_streams(std::int64_t rank) {
    std::array<bool, kStreamKinds> used{};
    for (const Op& op : program_of(rank).ops) {
      used[static_cast<std::size_t>(op.stream)] = true;
    }
    for (const StreamKind stream : kStreams) {
      if (used[static_cast<std::size_t>(stream)]) {
        add(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", process(rank),
            static_cast<int>(stream), name_of(stream));
      }
    }
  }

  // From within the first op to within the second. An arrow's end must lie in a slice and not before its start.
  void add_arrow(const TraceEvent& from, const TraceEvent& to) {
    const auto within = [](const TraceEvent& event, double share) {
      return (event.start_s + share * (event.end_s - event.start_s)) * kMicroseconds;
    };
    if (from.start_s > to.end_s) {
      return;  // clocks of two hosts that are further apart than the message was long: there is no such arrow
    }
    const double start = std::min(within(from, 0.1), within(to, 1));
    const double end = std::max(start, within(to, 0.9));
    const std::int64_t id = next_flow_++;
    add(R"({{"ph":"s","name":"message","cat":"message","id":{},"pid":{},"tid":{},"ts":{:.3f}}})", id,
        process(from.rank), track(op_of(from)), start);
    add(R"({{"ph":"f","bp":"e","name":"message","cat":"message","id":{},"pid":{},"tid":{},"ts":{:.3f}}})", id,
        process(to.rank), track(op_of(to)), end);
  }

  std::string& events_;
  std::int64_t first_process_;
  std::int64_t& next_flow_;
  const Schedule& schedule_;
};

}  // namespace

void ChromeTrace::add_run(std::string_view name, const Schedule& schedule, const Trace& trace) {
  Writer writer(events_, next_process_, next_flow_, schedule);
  writer.name_ranks(name);
  writer.add_ops(trace);
  writer.add_messages(trace);
  writer.add_rings(trace);
  next_process_ += schedule.plan.parallel.ranks();
}

std::string ChromeTrace::text() const { return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events_ + "\n]}\n"; }

}  // namespace lamina
