// Random numbers without a state: each depends on a key and a counter alone, so that any rank can draw any of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace lamina {

// A bijection of 64-bit numbers that leaves no visible pattern (the finaliser of SplitMix64, by S. Vigna).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// The key of a named stream of numbers (FNV-1a of the name, mixed with the seed).
constexpr std::uint64_t random_key(std::int64_t seed, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3ULL;
  }
  return mix_bits(mix_bits(static_cast<std::uint64_t>(seed) + 0x9E3779B97F4A7C15ULL) ^ hash);
}

constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t counter) {
  return mix_bits(mix_bits(key + counter * 0x9E3779B97F4A7C15ULL) ^ key);
}

// Uniform in [0, bound), bound > 0.
constexpr std::int64_t random_below(std::uint64_t key, std::uint64_t counter, std::int64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>((static_cast<Wide>(random_bits(key, counter)) * static_cast<std::uint64_t>(bound)) >>
                                   64);
}

// Standard normal (Box and Muller).
inline double random_normal(std::uint64_t key, std::uint64_t counter) {
  constexpr double kUnit = 0x1p-53;
  const double radius = (static_cast<double>(random_bits(key, 2 * counter) >> 11) + 1) * kUnit;  // in (0, 1]
  const double turn = static_cast<double>(random_bits(key, 2 * counter + 1) >> 11) * kUnit;      // in [0, 1)
  return std::sqrt(-2 * std::log(radius)) * std::cos(2 * std::numbers::pi * turn);
}

}  // namespace lamina
