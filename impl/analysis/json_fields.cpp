#include "impl/analysis/json_fields.h"

#include <algorithm>
#include <cmath>

#include "impl/base/error.h"
#include "impl/base/nearest.h"

namespace lamina::analysis {

void refuse(const std::string& path, const std::string& what) { throw UsageError(fmt::format("{}: {}", path, what)); }

std::optional<std::string> unknown_key(const Field& object, const std::vector<std::string_view>& known) {
  for (const auto& [key, unused] : object.value.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return fmt::format("unknown key '{}' (the nearest known is '{}')", key, nearest_name(key, known));
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

}  // namespace lamina::analysis
