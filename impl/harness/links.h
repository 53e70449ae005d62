// Links by the names that a network engineer knows.
#pragma once

#include <span>
#include <string_view>

namespace lamina {

struct LinkPreset {
  std::string_view name;
  double bandwidth_bits_per_s;  // nominal, one direction
  double latency_s;             // one way, small message, between two processes
  std::string_view source;
};

std::span<const LinkPreset> link_presets();
const LinkPreset& link_preset(std::string_view name);  // throws UsageError with the nearest known name

}  // namespace lamina
