#include "impl/schedule/interpreter.h"

#include <algorithm>
#include <random>

#include "impl/base/error.h"

namespace lamina {
namespace {

struct Choice {
  std::int32_t place = 0;
  StreamKind stream = StreamKind::compute;
  bool start = true;
};

std::vector<Choice> choices_of(const Progress& progress) {
  std::vector<Choice> choices;
  for (std::int32_t place = 0; place < progress.places(); ++place) {
    for (const StreamKind stream : kStreams) {
      if (progress.can_start(place, stream)) {
        choices.push_back({place, stream, true});
      } else if (progress.can_finish(place, stream)) {
        choices.push_back({place, stream, false});
      }
    }
  }
  return choices;
}

void finish(const Progress& progress, const Choice& choice, const Op& op, Arithmetic& arithmetic) {
  if (is_collective(op.kind)) {
    arithmetic.collect(choice.place, op, progress.meeting_of(choice.place, op));
  } else if (op.kind == OpKind::receive) {
    for (const auto& [place, other] : progress.meeting_of(choice.place, op)) {
      if (other->kind == OpKind::send) {
        arithmetic.deliver(place, *other, choice.place, op);
      }
    }
  } else if (op.kind != OpKind::send) {
    arithmetic.compute(choice.place, op);
  }
}

// Even seeds choose evenly. Odd seeds give every lane a priority and mostly take the highest, so that some streams run
// far ahead while others starve: races that an even choice hardly ever shows.
class Chooser {
 public:
  Chooser(std::uint64_t seed, std::int32_t places) : random_(seed), by_priority_(seed % 2 == 1) {
    for (std::int32_t i = 0; i < places * kStreamKinds; ++i) {
      priority_.push_back(random_());
    }
  }

  const Choice& operator()(const std::vector<Choice>& choices) {
    if (!by_priority_ || random_() % 16 == 0) {
      return choices[random_() % choices.size()];
    }
    return *std::max_element(choices.begin(), choices.end(),
                             [&](const Choice& a, const Choice& b) { return priority(a) < priority(b); });
  }

 private:
  std::uint64_t priority(const Choice& choice) const {
    return priority_[static_cast<std::size_t>(choice.place) * kStreamKinds + static_cast<std::size_t>(choice.stream)];
  }

  std::mt19937_64 random_;
  bool by_priority_;
  std::vector<std::uint64_t> priority_;
};

std::string stalled(const Progress& progress) {
  std::string text;
  for (std::int32_t place = 0; place < progress.places(); ++place) {
    for (const StreamKind stream : kStreams) {
      if (const Op* op = progress.head(place, stream)) {
        const Place at = progress.place(place);
        text += fmt::format("{}pipeline rank {} (data {}): {}", text.empty() ? "" : "; ", at.pipeline, at.data,
                            describe(*op));
      }
    }
  }
  return text;
}

}  // namespace

Interpretation interpret(const Schedule& schedule, std::int32_t data_copies, std::uint64_t seed,
                         Arithmetic& arithmetic) {
  Progress progress(schedule, data_copies);
  Chooser choose(seed, progress.places());
  while (!progress.done()) {
    const std::vector<Choice> choices = choices_of(progress);
    if (choices.empty()) {
      return {.completed = false, .stalled_at = stalled(progress)};
    }
    const Choice choice = choose(choices);
    const Op& op = *progress.head(choice.place, choice.stream);
    if (choice.start) {
      progress.start(choice.place, choice.stream);
      arithmetic.begin(choice.place, op);
    } else {
      finish(progress, choice, op, arithmetic);
      progress.finish(choice.place, choice.stream);
    }
  }
  return {.completed = true, .stalled_at = ""};
}

}  // namespace lamina
