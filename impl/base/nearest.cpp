#include "impl/base/nearest.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace lamina {
namespace {

// Optimal string alignment distance (Damerau-Levenshtein without repeated edits of one place).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    above[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view given, std::span<const std::string_view> known) {
  std::string_view nearest;
  std::size_t smallest = std::numeric_limits<std::size_t>::max();
  for (const std::string_view name : known) {
    if (!given.empty() && name.starts_with(given)) {
      return name;
    }
    if (const std::size_t distance = edit_distance(given, name); distance < smallest) {
      smallest = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace lamina
