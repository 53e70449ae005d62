// Packs of float read from and written to arrays of 16-bit numbers, so that a row kernel takes them like any other.
// Widening is exact; narrowing rounds to nearest, ties to even, beyond the largest number to infinity. A NaN stays one:
// quiet, with its sign and the upper bits of its payload.
#pragma once

#include "impl/base/real.h"
#include "impl/kernels/pack.h"

#if defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace lamina::kernels {

#ifdef __CUDACC__
inline namespace array_packs {
#else
inline namespace vector_packs {
#endif

template <int W>
using Words = Pack<std::uint32_t, W>;

inline constexpr std::uint32_t kSign = 0x80000000;
inline constexpr std::uint32_t kFloatInfinity = 0x7F800000;
inline constexpr std::uint32_t kFloatQuiet = 0x00400000;

template <int W>
LAMINA_DEVICE Pack<float, W> widen_bf16(const Words<W>& bits) {
  const Words<W> wide = bits << 16;
  return reinterpret<float>(select_less(Words<W>(kFloatInfinity), wide & ~kSign, wide | kFloatQuiet, wide));
}

template <int W>
LAMINA_DEVICE Words<W> narrow_bf16(const Pack<float, W>& values) {
  const Words<W> bits = reinterpret<std::uint32_t>(values);
  const Words<W> rounded = (bits + ((bits >> 16 & 1) + 0x7FFF)) >> 16;
  return select_less(Words<W>(kFloatInfinity), bits & ~kSign, (bits | kFloatQuiet) >> 16, rounded);
}

// fp16's fields moved to where float has them are the number times 2^-112, subnormals too. The machine's instructions
// are used below where it has them: some processors multiply subnormals very slowly.
template <int W>
LAMINA_DEVICE Pack<float, W> widen_fp16(const Words<W>& bits) {
  const Words<W> magnitude = bits & 0x7FFF;
  const Pack<float, W> scaled = reinterpret<float>(magnitude << 13) * 0x1p112F;
  Words<W> wide = reinterpret<std::uint32_t>(scaled);
  wide = select_less(magnitude, 0x7C00, wide, wide | kFloatInfinity);
  wide = select_less(Words<W>(0x7C00), magnitude, wide | kFloatQuiet, wide);
  return reinterpret<float>(wide | (bits & 0x8000) << 16);
}

template <int W>
LAMINA_DEVICE Words<W> narrow_fp16(const Pack<float, W>& values) {
  constexpr std::uint32_t kTooLarge = (127 + 16) << 23;     // 2^16, which no rounding brings back below infinity
  constexpr std::uint32_t kLeastNormal = (127 - 14) << 23;  // 2^-14
  constexpr float kHalf = 0.5F;                             // its last bit is worth 2^-24, as a subnormal's
  constexpr std::uint32_t kHalfBits = 0x3F000000;
  const Words<W> bits = reinterpret<std::uint32_t>(values);
  const Words<W> magnitude = bits & ~kSign;
  // The sum rounds a subnormal where its last bit is.
  const Words<W> subnormal = reinterpret<std::uint32_t>(reinterpret<float>(magnitude) + kHalf) - kHalfBits;
  const Words<W> normal = (magnitude - ((127 - 15) << 23) + ((magnitude >> 13 & 1) + 0xFFF)) >> 13;
  const Words<W> nan = (magnitude >> 13 & 0x3FF) | 0x7E00;
  Words<W> result = select_less(magnitude, kLeastNormal, subnormal, normal);
  result = select_less(magnitude, kTooLarge, result, Words<W>(0x7C00));
  result = select_less(Words<W>(kFloatInfinity), magnitude, nan, result);
  return result | (bits & kSign) >> 16;
}

template <class A, int W>
LAMINA_DEVICE Pack<float, W> load(At<W> at, const Bf16* row) {
  static_assert(std::is_same_v<A, float>, "16-bit numbers are computed with in float");
  return widen_bf16(load<std::uint32_t>(at, &row->bits));
}
template <class A, int W>
LAMINA_DEVICE void store(At<W> at, Bf16* row, const Pack<A, W>& values) {
  store(at, &row->bits, narrow_bf16(values));
}

template <class A, int W>
LAMINA_DEVICE Pack<float, W> load(At<W> at, const Fp16* row) {
  static_assert(std::is_same_v<A, float>, "16-bit numbers are computed with in float");
#if defined(__F16C__) && !defined(__CUDACC__)
  if constexpr (W == 8) {
    Pack<float, W> values;
    values.lanes = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + at.index)));
    return values;
  }
#endif
  return widen_fp16(load<std::uint32_t>(at, &row->bits));
}
template <class A, int W>
LAMINA_DEVICE void store(At<W> at, Fp16* row, const Pack<A, W>& values) {
#if defined(__F16C__) && !defined(__CUDACC__)
  if constexpr (W == 8) {
    const __m128i halves = _mm256_cvtps_ph(values.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(row + at.index), halves);
  }
#endif
  store(at, &row->bits, narrow_fp16(values));
}

}  // namespace array_packs or vector_packs

}  // namespace lamina::kernels
