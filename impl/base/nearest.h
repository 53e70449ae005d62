// "Did you mean …": the known name nearest to a misspelt one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lamina {

// A name that begins with the given one, else the one with the smallest edit distance (insert, delete, replace, swap
// of neighbours), whatever it is; empty only when there is none to choose from.
std::string_view nearest_name(std::string_view given, std::span<const std::string_view> known);

}  // namespace lamina
