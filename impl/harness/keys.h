// Every key that a scenario may hold: one table, from which the reader's checks, the JSON Schema and the printed list
// of keys are all made.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "impl/base/strict_json.h"

namespace lamina {

enum class KeyType : std::uint8_t {
  object,
  list,     // of objects, whose keys have "name[]." as their path
  integer,  // a JSON number without fraction or exponent
  number,
  text,
  boolean,
  sweep  // an object of any names, each with a list of values
};

struct Key {
  std::string_view path;  // "model.layers", "runs[].parallel.data"; "" is the document
  KeyType type = KeyType::object;
  std::string_view documentation;  // one line
  std::string_view unit = {};      // empty: none

  bool required = false;               // where its parent is given (and `only_when` holds)
  std::string_view default_json = {};  // what a missing key becomes; empty: it stays missing

  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // the minimum itself is not allowed

  std::vector<std::string_view> choices = {};  // of a text; empty: any
  std::string_view pattern = {};               // of a text (ECMAScript); empty: any

  // The key is for objects in which `sibling` has one of these values; elsewhere it is refused.
  struct Condition {
    std::string_view sibling;
    std::vector<std::string_view> values;
  };
  std::optional<Condition> only_when = {};

  // Of an object: groups of its keys of which exactly one, or at least one, must be given.
  std::vector<std::string_view> exactly_one_of = {};
  std::vector<std::string_view> at_least_one_of = {};
};

std::span<const Key> scenario_keys();

// The key at a place like "runs[0].parallel.data" or "runs[layered].groups" (any index or name); null when unknown.
const Key* find_key(std::string_view place);

// Throws UsageError with one line, `name` and the key, for the first thing wrong: an unknown key (with the nearest
// known one), a missing one, a wrong type, a value out of its range.
void validate_keys(const Json& document, const std::string& name);

// Adds the defaults of the keys that are missing and puts all into the table's order. The document must be valid.
void fill_defaults(Json& document);

// JSON Schema, draft 2020-12.
Json scenario_schema();

// The keys as a Markdown table.
std::string keys_as_markdown();

}  // namespace lamina
