// Strict reading of the values in a JSON document (impl/base/strict_json reads the text): every key known, every number
// in its range, one line that names the place of what is wrong.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "impl/base/strict_json.h"

namespace lamina::analysis {

// A JSON value together with its path, for errors.
struct Field {
  const Json& value;
  std::string path;
};

[[noreturn]] void refuse(const std::string& path, const std::string& what);  // throws UsageError "path: what"

// The first key that is not known, in words with the nearest known name; nothing when all are.
std::optional<std::string> unknown_key(const Field& object, const std::vector<std::string_view>& known);

// Refuses what is no object, keys outside `required` and `optional` (with the nearest known name) and missing required
// ones.
void check_keys(const Field& field, std::initializer_list<std::string_view> required,
                std::initializer_list<std::string_view> optional = {});

Field child(const Field& field, std::string_view key);  // the key is there

std::string text(const Field& field);  // not empty

struct Range {
  double least;
  double most;
  bool least_excluded = false;
};
double number(const Field& field, Range range);  // finite and in the range
std::int64_t whole_number(const Field& field, std::int64_t least, std::int64_t most);

}  // namespace lamina::analysis
