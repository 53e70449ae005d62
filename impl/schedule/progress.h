// The rule by which executors run a schedule, as a state that is advanced op by op: a stream runs its ops in order, an
// op starts when its waits are done, a message ends when both sides have started (rendezvous), a collective when all
// members have. Messages and collectives are matched by their order on a communicator: there are no tags. A pair of
// ranks has a communicator for each direction of the pass and each direction between the two.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "impl/schedule/schedule.h"

namespace lamina {

// One process: a pipeline rank's program in one data-parallel copy.
struct Place {
  std::int32_t pipeline = 0;
  std::int32_t data = 0;
};

class Progress {
 public:
  // Runs `data_copies` copies of every program (tensor-parallel ranks are not told apart).
  Progress(const Schedule& schedule, std::int32_t data_copies);

  std::int32_t places() const { return static_cast<std::int32_t>(places_.size()); }
  Place place(std::int32_t index) const { return places_[static_cast<std::size_t>(index)]; }
  const Program& program(std::int32_t index) const;

  // The op at the head of a stream; nullptr when the stream has run out.
  const Op* head(std::int32_t place, StreamKind stream) const;
  bool started(std::int32_t place, StreamKind stream) const;
  bool can_start(std::int32_t place, StreamKind stream) const;
  void start(std::int32_t place, StreamKind stream);
  bool can_finish(std::int32_t place, StreamKind stream) const;
  void finish(std::int32_t place, StreamKind stream);
  bool done() const { return remaining_ == 0; }

  // The other ops of the message or collective that a started op belongs to, itself included, as (place, op);
  // complete once can_finish() is true.
  using Member = std::pair<std::int32_t, const Op*>;
  const std::vector<Member>& meeting_of(std::int32_t place, const Op& op) const;

 private:
  // What meets: the messages of one direction from one place to another, or the collectives of one group.
  struct Channel {
    enum class Kind : std::uint8_t { activations, gradients, data_group, everyone } kind = Kind::activations;
    std::int32_t from = 0;
    std::int32_t to = 0;
    auto operator<=>(const Channel&) const = default;
  };
  struct Meeting {
    std::size_t expected = 0;
    std::vector<Member> members;
  };
  struct StreamState {
    std::vector<std::int32_t> ops;
    std::size_t next = 0;
    bool started = false;
  };
  struct PlaceState {
    std::array<StreamState, kStreamKinds> streams;
    std::vector<bool> ended;
    std::vector<Meeting*> meeting;
  };

  StreamState& state(std::int32_t place, StreamKind stream);
  const StreamState& state(std::int32_t place, StreamKind stream) const;
  Meeting& join(std::int32_t place, const Op& op);

  const Schedule& schedule_;
  std::int32_t data_copies_ = 1;
  std::vector<Place> places_;
  std::vector<PlaceState> states_;
  std::size_t remaining_ = 0;
  std::map<Channel, std::deque<Meeting>> meetings_;
  std::map<std::pair<Channel, std::int32_t>, std::size_t> joined_;  // how many a member (or side) has joined
};

// Runs to the end in one of the possible sequences: `start` and `finish`, called with a place and a stream, must start
// and finish the op at its head. False where the schedule stalls.
template <class Start, class Finish>
bool run_greedily(const Progress& progress, const Start& start, const Finish& finish) {
  while (!progress.done()) {
    bool moved = false;
    for (std::int32_t place = 0; place < progress.places(); ++place) {
      for (const StreamKind stream : kStreams) {
        for (;; moved = true) {
          if (progress.can_start(place, stream)) {
            start(place, stream);
          } else if (progress.can_finish(place, stream)) {
            finish(place, stream);
          } else {
            break;
          }
        }
      }
    }
    if (!moved) {
      return false;
    }
  }
  return true;
}

}  // namespace lamina
