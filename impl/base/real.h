// The real types that the numerics are written for, and their names in scenarios and files.
#pragma once

#include <cstdint>
#include <string_view>

namespace lamina {

// Numbers of 16 bits are stored and sent, never computed with: impl/kernels/sixteen_bits.h widens them to float.
struct Bf16 {
  std::uint16_t bits = 0;  // the upper half of a float: 8 bits of exponent, 7 of fraction
};
struct Fp16 {
  std::uint16_t bits = 0;  // IEEE 754 binary16: 5 bits of exponent, 10 of fraction
};

// The type that values stored as `Stored` are computed in.
template <class Stored>
struct WideType {
  using type = Stored;
};
template <>
struct WideType<Bf16> {
  using type = float;
};
template <>
struct WideType<Fp16> {
  using type = float;
};
template <class Stored>
using Wide = typename WideType<Stored>::type;

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

// The type that values stored as `stored` are computed in.
constexpr RealType wide_type_of(RealType stored) { return stored == RealType::fp64 ? RealType::fp64 : RealType::fp32; }

constexpr bool has_16_bits(RealType type) { return bytes_of(type) == 2; }

// The real types of a training run.
struct Precision {
  // Weights as forward and backward read them, activations, and both on the wire. All arithmetic is in its wide type,
  // and so are gradients and, where it has 16 bits, the optimizer's own copy of the weights (the masters).
  RealType compute = RealType::fp32;
  // Gradients on the wire: the wide type, or `compute` itself. Summed in the wide type either way.
  RealType reduce = RealType::fp32;
  // fp16 alone: the loss is multiplied by this at first, so that small gradients are not lost below fp16's range. Half
  // of it after a step whose gradients overflowed, twice after growth_interval steps without.
  double loss_scale = 65536;
  std::int64_t growth_interval = 2000;

  RealType wide() const { return wide_type_of(compute); }
  bool has_masters() const { return has_16_bits(compute); }
  bool scales_loss() const { return compute == RealType::fp16; }
};

// Everything in one type.
constexpr Precision precision_of(RealType type) { return {.compute = type, .reduce = wide_type_of(type)}; }

}  // namespace lamina
