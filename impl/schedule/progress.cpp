#include "impl/schedule/progress.h"

#include <algorithm>

#include "impl/base/error.h"

namespace lamina {

Progress::Progress(const Schedule& schedule, std::int32_t data_copies)
    : schedule_(schedule), data_copies_(data_copies) {
  for (std::int32_t pipeline = 0; pipeline < std::ssize(schedule.programs); ++pipeline) {
    const Program& program = schedule.programs[static_cast<std::size_t>(pipeline)];
    for (std::int32_t data = 0; data < data_copies; ++data) {
      places_.push_back({pipeline, data});
      PlaceState& state = states_.emplace_back();
      state.ended.assign(program.ops.size(), false);
      state.meeting.assign(program.ops.size(), nullptr);
      for (const Op& op : program.ops) {
        state.streams[static_cast<std::size_t>(op.stream)].ops.push_back(op.id);
      }
      remaining_ += program.ops.size();
    }
  }
}

const Program& Progress::program(std::int32_t index) const {
  return schedule_.programs[static_cast<std::size_t>(place(index).pipeline)];
}

Progress::StreamState& Progress::state(std::int32_t place, StreamKind stream) {
  return states_[static_cast<std::size_t>(place)].streams[static_cast<std::size_t>(stream)];
}
const Progress::StreamState& Progress::state(std::int32_t place, StreamKind stream) const {
  return states_[static_cast<std::size_t>(place)].streams[static_cast<std::size_t>(stream)];
}

const Op* Progress::head(std::int32_t place, StreamKind stream) const {
  const StreamState& lane = state(place, stream);
  return lane.next < lane.ops.size() ? &program(place).ops[static_cast<std::size_t>(lane.ops[lane.next])] : nullptr;
}

bool Progress::started(std::int32_t place, StreamKind stream) const { return state(place, stream).started; }

bool Progress::can_start(std::int32_t place, StreamKind stream) const {
  const Op* op = head(place, stream);
  if (op == nullptr || state(place, stream).started) {
    return false;
  }
  const std::vector<bool>& ended = states_[static_cast<std::size_t>(place)].ended;
  return std::all_of(op->waits.begin(), op->waits.end(),
                     [&](std::int32_t id) { return ended[static_cast<std::size_t>(id)]; });
}

void Progress::start(std::int32_t place, StreamKind stream) {
  const Op& op = *head(place, stream);
  state(place, stream).started = true;
  if (op.kind == OpKind::send || op.kind == OpKind::receive || is_collective(op.kind)) {
    states_[static_cast<std::size_t>(place)].meeting[static_cast<std::size_t>(op.id)] = &join(place, op);
  }
}

Progress::Meeting& Progress::join(std::int32_t index, const Op& op) {
  const Place here = place(index);
  Channel channel;
  std::size_t expected = 0;
  std::int32_t side = index;
  if (op.kind == OpKind::send || op.kind == OpKind::receive) {
    const std::int32_t peer = op.peer * data_copies_ + here.data;
    const Channel::Kind kind = is_backward(op.stream) ? Channel::Kind::gradients : Channel::Kind::activations;
    channel = op.kind == OpKind::send ? Channel{kind, index, peer} : Channel{kind, peer, index};
    side = op.kind == OpKind::send ? 0 : 1;
    expected = 2;
  } else if (op.kind == OpKind::norm) {
    channel = {Channel::Kind::everyone, 0, 0};
    expected = places_.size();
  } else {
    channel = {Channel::Kind::data_group, here.pipeline, 0};
    expected = static_cast<std::size_t>(data_copies_);
  }
  std::deque<Meeting>& list = meetings_[channel];
  const std::size_t turn = joined_[{channel, side}]++;
  while (list.size() <= turn) {
    list.emplace_back().expected = expected;
  }
  list[turn].members.emplace_back(index, &op);
  return list[turn];
}

bool Progress::can_finish(std::int32_t place, StreamKind stream) const {
  if (!state(place, stream).started) {
    return false;
  }
  const Op& op = *head(place, stream);
  const Meeting* meeting = states_[static_cast<std::size_t>(place)].meeting[static_cast<std::size_t>(op.id)];
  return meeting == nullptr || meeting->members.size() == meeting->expected;
}

void Progress::finish(std::int32_t place, StreamKind stream) {
  StreamState& lane = state(place, stream);
  states_[static_cast<std::size_t>(place)].ended[static_cast<std::size_t>(lane.ops[lane.next])] = true;
  lane.started = false;
  ++lane.next;
  --remaining_;
}

const std::vector<Progress::Member>& Progress::meeting_of(std::int32_t place, const Op& op) const {
  const Meeting* meeting = states_[static_cast<std::size_t>(place)].meeting[static_cast<std::size_t>(op.id)];
  LAMINA_CHECK(meeting != nullptr, "{} meets nobody", describe(op));
  return meeting->members;
}

}  // namespace lamina
