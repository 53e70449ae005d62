#include "impl/analysis/json_fields.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <utility>

#include "impl/base/error.h"

namespace lamina::analysis {

using nlohmann::json;

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

}  // namespace

void refuse(const std::string& path, const std::string& what) { throw UsageError(fmt::format("{}: {}", path, what)); }

std::optional<std::string> unknown_key(const Field& object, const std::vector<std::string_view>& known) {
  for (const auto& [key, unused] : object.value.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const auto nearest = *std::min_element(
          known.begin(), known.end(), [&](auto a, auto b) { return edit_distance(a, key) < edit_distance(b, key); });
      return fmt::format("unknown key '{}' (the nearest known is '{}')", key, nearest);
    }
  }
  return std::nullopt;
}

void check_keys(const Field& field, std::initializer_list<std::string_view> required,
                std::initializer_list<std::string_view> optional) {
  if (!field.value.is_object()) {
    refuse(field.path, "must be an object");
  }
  std::vector<std::string_view> known(required);
  known.insert(known.end(), optional.begin(), optional.end());
  if (const auto unknown = unknown_key(field, known)) {
    refuse(field.path, *unknown);
  }
  for (const std::string_view key : required) {
    if (!field.value.contains(key)) {
      refuse(field.path, fmt::format("key '{}' is missing", key));
    }
  }
}

Field child(const Field& field, std::string_view key) {
  return {field.value.at(std::string(key)), fmt::format("{}.{}", field.path, key)};
}

std::string text(const Field& field) {
  if (!field.value.is_string() || field.value.get_ref<const std::string&>().empty()) {
    refuse(field.path, "must be a text that is not empty");
  }
  return field.value.get<std::string>();
}

double number(const Field& field, Range range) {
  const bool inside =
      field.value.is_number() && std::isfinite(field.value.get<double>()) &&
      (range.least_excluded ? field.value.get<double>() > range.least : field.value.get<double>() >= range.least) &&
      field.value.get<double>() <= range.most;
  if (!inside) {
    refuse(field.path, fmt::format("is {}; it must be a number {} {:g} and at most {:g}", field.value.dump(),
                                   range.least_excluded ? "above" : "of at least", range.least, range.most));
  }
  return field.value.get<double>();
}

std::int64_t whole_number(const Field& field, std::int64_t least, std::int64_t most) {
  const bool inside = field.value.is_number_integer() && field.value.get<double>() >= static_cast<double>(least) &&
                      field.value.get<double>() <= static_cast<double>(most);
  if (!inside) {
    refuse(field.path, fmt::format("is {}; it must be a whole number from {} to {}", field.value.dump(), least, most));
  }
  return field.value.get<std::int64_t>();
}

nlohmann::json read_json_document(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw UsageError(fmt::format("{}: cannot be opened", file.string()));
  }
  // nlohmann-json keeps the last of two equal keys without a word; the callback sees both.
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  json document;
  try {
    document = json::parse(stream, watch);
  } catch (const json::exception& error) {
    throw UsageError(fmt::format("{}: not valid JSON: {}", file.string(), error.what()));
  }
  if (!duplicate.empty()) {
    throw UsageError(fmt::format("{}: key '{}' stands twice in one object", file.string(), duplicate));
  }
  return document;
}

}  // namespace lamina::analysis
