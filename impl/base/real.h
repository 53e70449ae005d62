// The real types that the numerics are written for, and their names in scenarios and files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lamina {

enum class RealType : std::uint8_t { fp64, fp32, bf16, fp16 };

constexpr std::int64_t bytes_of(RealType type) {
  switch (type) {
    case RealType::fp64:
      return 8;
    case RealType::fp32:
      return 4;
    case RealType::bf16:
    case RealType::fp16:
      return 2;
  }
  return 0;
}

constexpr std::string_view name_of(RealType type) {
  switch (type) {
    case RealType::fp64:
      return "fp64";
    case RealType::fp32:
      return "fp32";
    case RealType::bf16:
      return "bf16";
    case RealType::fp16:
      return "fp16";
  }
  return "?";
}

template <class Real>
constexpr RealType real_type_of() {
  static_assert(sizeof(Real) == 8 || sizeof(Real) == 4);
  return sizeof(Real) == 8 ? RealType::fp64 : RealType::fp32;
}

}  // namespace lamina
