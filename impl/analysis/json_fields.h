// Strict reading of JSON documents: every key known, every number in its range, one line that names the place of what
// is wrong.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::analysis {

// A JSON value together with its path, for errors.
struct Field {
  const nlohmann::json& value;
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

// Reads and parses the file; duplicate keys and trailing text are errors. Throws UsageError with one line.
nlohmann::json read_json_document(const std::filesystem::path& file);

}  // namespace lamina::analysis
