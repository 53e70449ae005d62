#include "impl/schedule/text.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <sstream>

#include "impl/base/error.h"

namespace lamina {
namespace {

std::string join(const std::vector<std::int32_t>& values) {
  return values.empty() ? "-" : fmt::format("{}", fmt::join(values, ","));
}

std::string unit_text(Unit unit) {
  switch (unit.kind) {
    case UnitKind::embedding:
      return "embedding";
    case UnitKind::head:
      return "head";
    case UnitKind::layer:
      break;
  }
  return unit.layer < 0 ? "-" : std::to_string(unit.layer);
}

std::string plan_text(const Plan& plan) {
  const ModelShape& model = plan.model;
  return fmt::format(
      "plan method={} layers={} hidden={} heads={} sequence={} vocabulary={} data={} pipeline={} tensor={} "
      "zero_stage={} recompute={} micro_batch_size={} micro_batches={} groups={} chunks={} prefetch_layers={} "
      "resident_layers={} keep_full_gradient={} update_after_norm={}\n",
      plan.method, model.layers, model.hidden, model.heads, model.sequence, model.vocabulary, plan.parallel.data,
      plan.parallel.pipeline, plan.parallel.tensor, plan.zero_stage, name_of(plan.recompute), plan.micro_batch_size,
      plan.micro_batches, plan.groups, plan.chunks, plan.prefetch_layers, plan.resident_layers,
      plan.keep_full_gradient ? 1 : 0, plan.update_after_norm ? 1 : 0);
}

// ---- Reading ----

struct Reader {
  int line = 0;

  [[noreturn]] void refuse(const std::string& reason) const {
    throw UsageError(fmt::format("schedule text, line {}: {}", line, reason));
  }

  std::int64_t number(std::string_view text) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
      refuse(fmt::format("'{}' is not a whole number", text));
    }
    return value;
  }

  std::vector<std::int32_t> numbers(std::string_view text) const {
    std::vector<std::int32_t> values;
    if (text == "-") {
      return values;
    }
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      values.push_back(static_cast<std::int32_t>(number(text.substr(at, comma - at))));
      at = comma + 1;
    }
    return values;
  }

  template <class Enum>
  Enum named(std::string_view text, int count) const {
    for (int i = 0; i < count; ++i) {
      if (name_of(static_cast<Enum>(i)) == text) {
        return static_cast<Enum>(i);
      }
    }
    refuse(fmt::format("'{}' is not known here", text));
  }

  Unit unit(std::string_view text) const {
    if (text == "embedding") {
      return embedding_unit();
    }
    if (text == "head") {
      return head_unit();
    }
    return text == "-" ? Unit{UnitKind::layer, -1} : layer_unit(number(text));
  }

  // key=value pairs behind the line's first words.
  std::map<std::string, std::string> pairs(std::istringstream& words) const {
    std::map<std::string, std::string> result;
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || !result.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
        refuse(fmt::format("'{}' is not a new key=value", word));
      }
    }
    return result;
  }

  const std::string& value(const std::map<std::string, std::string>& pairs, const std::string& key) const {
    const auto found = pairs.find(key);
    if (found == pairs.end()) {
      refuse(fmt::format("{} is missing", key));
    }
    return found->second;
  }

  Plan plan(std::istringstream& words) const {
    const auto given = pairs(words);
    const auto get = [&](const char* key) { return number(value(given, key)); };
    Plan plan;
    plan.method = value(given, "method");
    plan.model = {get("layers"), get("hidden"), get("heads"), get("sequence"), get("vocabulary")};
    plan.parallel = {get("data"), get("pipeline"), get("tensor")};
    plan.zero_stage = static_cast<int>(get("zero_stage"));
    plan.recompute = named<Recompute>(value(given, "recompute"), 3);
    plan.micro_batch_size = get("micro_batch_size");
    plan.micro_batches = get("micro_batches");
    plan.groups = get("groups");
    plan.chunks = get("chunks");
    plan.prefetch_layers = get("prefetch_layers");
    plan.resident_layers = get("resident_layers");
    plan.keep_full_gradient = get("keep_full_gradient") != 0;
    plan.update_after_norm = get("update_after_norm") != 0;
    return plan;
  }

  Op op(std::istringstream& words) const {
    Op op;
    std::string id, kind, unit_name;
    words >> id >> kind >> unit_name;
    op.id = static_cast<std::int32_t>(number(id));
    op.kind = named<OpKind>(kind, 14);
    op.unit = unit(unit_name);
    const auto given = pairs(words);
    const auto get = [&](const char* key) { return static_cast<std::int32_t>(number(value(given, key))); };
    op.part = named<Part>(value(given, "part"), 5);
    op.stream = named<StreamKind>(value(given, "stream"), kStreamKinds);
    op.micro_batch = get("micro_batch");
    op.group = get("group");
    op.peer = get("peer");
    op.accumulate = get("accumulate") != 0;
    op.reads = numbers(value(given, "reads"));
    op.writes = numbers(value(given, "writes"));
    op.elements = number(value(given, "elements"));
    op.waits = numbers(value(given, "waits"));
    return op;
  }
};

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text = "lamina-schedule 1\n" + plan_text(schedule.plan);
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    text += fmt::format("rank {}\n", rank);
    const Program& program = schedule.programs[rank];
    for (std::size_t slot = 0; slot < program.slots.size(); ++slot) {
      text +=
          fmt::format("slot {} {} {}\n", slot, name_of(program.slots[slot].kind), unit_text(program.slots[slot].unit));
    }
    for (const Op& op : program.ops) {
      text += fmt::format(
          "op {} {} {} part={} stream={} micro_batch={} group={} peer={} accumulate={} reads={} writes={} "
          "elements={} waits={}\n",
          op.id, name_of(op.kind), unit_text(op.unit), name_of(op.part), name_of(op.stream), op.micro_batch, op.group,
          op.peer, op.accumulate ? 1 : 0, join(op.reads), join(op.writes), op.elements, join(op.waits));
    }
  }
  return text;
}

Schedule schedule_from_text(std::string_view text) {
  Schedule schedule;
  Reader reader;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    ++reader.line;
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (reader.line == 1) {
      if (line != "lamina-schedule 1") {
        reader.refuse("the text does not begin with 'lamina-schedule 1'");
      }
    } else if (first == "plan") {
      schedule.plan = reader.plan(words);
    } else if (first == "rank") {
      schedule.programs.emplace_back();
    } else if ((first == "slot" || first == "op") && schedule.programs.empty()) {
      reader.refuse("no rank has begun");
    } else if (first == "slot") {
      std::string index, kind, unit;
      words >> index >> kind >> unit;
      schedule.programs.back().slots.push_back({reader.named<SlotKind>(kind, 10), reader.unit(unit)});
    } else if (first == "op") {
      schedule.programs.back().ops.push_back(reader.op(words));
    } else if (!first.empty()) {
      reader.refuse(fmt::format("'{}' begins no line", first));
    }
  }
  return schedule;
}

}  // namespace lamina
