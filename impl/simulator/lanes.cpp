#include "impl/simulator/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "impl/simulator/simulate.h"

namespace lamina {
namespace {

double lane_cost(const Plan& plan, const Op& op) {
  switch (op.kind) {
    case OpKind::forward:
      return op.unit.kind == UnitKind::layer ? 1.0 : 0.25;
    case OpKind::loss:
      return 0.25;
    case OpKind::backward:
      return op.unit.kind != UnitKind::layer ? 0.25 : plan.recompute == Recompute::full ? 3.0 : 2.0;
    case OpKind::all_reduce:
      return op.unit.kind == UnitKind::layer ? 2.0 : 0.25;
    case OpKind::gather:
    case OpKind::reduce:
      return op.unit.kind == UnitKind::layer ? 1.0 : 0.25;
    case OpKind::send:
    case OpKind::receive:
    case OpKind::update:
      return 0.25;
    default:
      return 0.0;
  }
}

char letter_of(OpKind kind) {
  switch (kind) {
    case OpKind::forward:
      return 'f';
    case OpKind::loss:
      return 'L';
    case OpKind::backward:
      return 'b';
    case OpKind::send:
      return 's';
    case OpKind::receive:
      return 'r';
    case OpKind::gather:
      return 'G';
    case OpKind::reduce:
      return 'R';
    case OpKind::all_reduce:
      return 'A';
    case OpKind::update:
      return 'u';
    default:
      return '*';
  }
}

// What stands in an op's columns: its letter, then layer.micro-batch as far as there is room.
std::string label_of(const Op& op, std::size_t width) {
  std::string label(1, letter_of(op.kind));
  if (op.unit.kind == UnitKind::layer && op.unit.layer >= 0) {
    label += std::to_string(op.unit.layer);
  } else if (op.unit.kind == UnitKind::embedding) {
    label += 'e';
  } else if (op.unit.kind == UnitKind::head) {
    label += 'h';
  }
  if (op.micro_batch >= 0) {
    label += fmt::format(".{}", op.micro_batch);
  }
  label.resize(std::max<std::size_t>(width, 1), '-');
  return label;
}

}  // namespace

std::string to_lanes(const Schedule& schedule, int columns) {
  const Simulation simulation =
      simulate(schedule, [&](std::int32_t, const Op& op) { return lane_cost(schedule.plan, op); });
  const int width = std::max(columns - 22, 20);
  const double scale = width / std::max(simulation.step_time_s, 1e-9);
  std::map<std::pair<std::int32_t, StreamKind>, std::string> lanes;
  for (const TraceEvent& event : simulation.trace) {
    const Op& op = schedule.programs[static_cast<std::size_t>(event.rank)].ops[static_cast<std::size_t>(event.op)];
    if (is_control(op.kind)) {
      continue;
    }
    std::string& lane = lanes.try_emplace({event.rank, op.stream}, static_cast<std::size_t>(width), ' ').first->second;
    const auto begin =
        std::min(static_cast<std::size_t>(std::lround(event.start_s * scale)), static_cast<std::size_t>(width) - 1);
    const auto end = std::clamp(static_cast<std::size_t>(std::lround(event.end_s * scale)), begin + 1,
                                static_cast<std::size_t>(width));
    const std::string label = label_of(op, end - begin);
    std::copy_n(label.begin(), end - begin, lane.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  std::string text;
  for (const auto& [key, lane] : lanes) {
    text += fmt::format("{:>3} {:<16} |{}|\n", key.first, name_of(key.second), lane);
  }
  text +=
      "rank stream; f forward, b backward, L head and loss, A all-reduce, G gather, R reduce-scatter, s send, r "
      "receive,\nu update; then layer.micro-batch (e embedding, h head). Costs of the drawing: forward 1, backward 2 "
      "(3 with\nfull recomputation), all-reduce of a layer 2, gather and reduce-scatter 1, the rest small.\n";
  return text;
}

}  // namespace lamina
