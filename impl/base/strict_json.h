// JSON read strictly: what a JSON library lets pass (a byte-order mark, a key given twice) is an error too.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lamina {

using Json = nlohmann::ordered_json;  // keys stay in the order of the file

// The document, or UsageError with one line: name, line and column, the key where reading stopped, the reason.
Json parse_strict_json(std::string_view text, const std::string& name);

// The same for a file; also when it cannot be read, or is larger than a document written by people (4 MiB).
Json read_strict_json(const std::string& path);

// A value shortened to fit a message.
std::string brief(const Json& value);

// A finite double; null where it is not (JSON has no NaN and no infinity).
Json finite_or_null(double value);

// What there is; null for nothing, which empty text stands for.
template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json text_or_null(std::string_view text);

}  // namespace lamina
