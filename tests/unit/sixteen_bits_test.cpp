// 16-bit numbers against their definition: all 65536 of them widened, and every boundary between two narrowed.
#include "impl/kernels/sixteen_bits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "impl/kernels/convert.h"

namespace lamina {
namespace {

using kernels::At;
using kernels::Pack;
using kernels::Words;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// What the bits mean, from the formats' definition.
template <int kExponentBits, int kFractionBits>
double meaning(std::uint32_t bits) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr int kLargest = (1 << kExponentBits) - 1;
  const int exponent = static_cast<int>(bits >> kFractionBits) & kLargest;
  const int fraction = static_cast<int>(bits) & ((1 << kFractionBits) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == kLargest) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const int whole = exponent == 0 ? fraction : fraction + (1 << kFractionBits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - kBias - kFractionBits);
}

struct Bf16Format {
  using Stored = Bf16;
  static constexpr std::uint32_t kInfinity = 0x7F80;
  static constexpr std::uint32_t kQuiet = 0x40;
  static double meaning_of(std::uint32_t bits) { return meaning<8, 7>(bits); }
  template <int W>
  static Pack<float, W> widen(const Words<W>& bits) {
    return kernels::widen_bf16(bits);
  }
  template <int W>
  static Words<W> narrow(const Pack<float, W>& values) {
    return kernels::narrow_bf16(values);
  }
};
struct Fp16Format {
  using Stored = Fp16;
  static constexpr std::uint32_t kInfinity = 0x7C00;
  static constexpr std::uint32_t kQuiet = 0x200;
  static double meaning_of(std::uint32_t bits) { return meaning<5, 10>(bits); }
  template <int W>
  static Pack<float, W> widen(const Words<W>& bits) {
    return kernels::widen_fp16(bits);
  }
  template <int W>
  static Words<W> narrow(const Pack<float, W>& values) {
    return kernels::narrow_fp16(values);
  }
};

template <class Format>
class SixteenBits : public ::testing::Test {
 protected:
  using Stored = typename Format::Stored;

  // Through arrays, with the machine's own instructions where it has them; the array's end is of odd length.
  static std::vector<float> widened(const std::vector<Stored>& from) {
    std::vector<float> to(from.size());
    kernels::convert_all(from.data(), to.data(), std::ssize(from), 1);
    return to;
  }
  static std::vector<Stored> narrowed(const std::vector<float>& from) {
    std::vector<Stored> to(from.size());
    kernels::convert_all(from.data(), to.data(), std::ssize(from), 1);
    return to;
  }

  // The portable formulas, W at once.
  template <int W>
  static std::uint32_t narrow_by_formula(float value) {
    return Format::template narrow<W>(Pack<float, W>(value))[W - 1];
  }
  static void expect_narrowed(const std::vector<float>& values, const std::vector<std::uint32_t>& wanted) {
    const std::vector<Stored> got = narrowed(values);
    int shown = 0;
    for (std::size_t i = 0; i < values.size() && shown < 10; ++i) {
      const bool right = got[i].bits == wanted[i] && narrow_by_formula<1>(values[i]) == wanted[i] &&
                         narrow_by_formula<8>(values[i]) == wanted[i];
      shown += right ? 0 : 1;
      EXPECT_TRUE(right) << std::hexfloat << values[i] << std::hex << " became " << got[i].bits << ", by formula "
                         << narrow_by_formula<1>(values[i]) << " and " << narrow_by_formula<8>(values[i])
                         << ", should be " << wanted[i];
    }
  }
};

using Formats = ::testing::Types<Bf16Format, Fp16Format>;
TYPED_TEST_SUITE(SixteenBits, Formats);

TYPED_TEST(SixteenBits, EveryOneIsWidenedToWhatItMeans) {
  std::vector<typename TypeParam::Stored> all(65536 + 3);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<std::uint16_t>(i);
  }
  const std::vector<float> wide = this->widened(all);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const std::uint32_t bits = i & 0xFFFF;
    const double wanted = TypeParam::meaning_of(bits);
    const float formula = TypeParam::template widen<4>(Words<4>(bits))[3];
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(wide[i]) && std::isnan(formula)) << std::hex << bits;
      ASSERT_EQ(bits_of(wide[i]), bits_of(formula)) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(wide[i], wanted) << std::hex << bits;
    ASSERT_EQ(std::signbit(wide[i]), std::signbit(wanted)) << std::hex << bits;
    ASSERT_EQ(bits_of(wide[i]), bits_of(formula)) << std::hex << bits;
  }
}

TYPED_TEST(SixteenBits, EveryOneComesBackFromFloat) {
  std::vector<float> values;
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const bool nan = (bits & 0x7FFF) > TypeParam::kInfinity;
    values.push_back(TypeParam::template widen<1>(Words<1>(bits))[0]);
    wanted.push_back(nan ? bits | TypeParam::kQuiet : bits);
  }
  this->expect_narrowed(values, wanted);
}

// Between two neighbours lies one boundary; on it the even one is taken. Infinity's neighbour is what the largest
// number would be followed by.
TYPED_TEST(SixteenBits, EveryBoundaryRoundsToNearestTiesToEven) {
  std::vector<float> values;
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t below = 0; below < TypeParam::kInfinity; ++below) {
    const double low = TypeParam::meaning_of(below);
    const double step = below + 1 == TypeParam::kInfinity ? low - TypeParam::meaning_of(below - 1)
                                                          : TypeParam::meaning_of(below + 1) - low;
    const auto middle = static_cast<float>(low + step / 2);
    ASSERT_EQ(middle, low + step / 2) << std::hex << below;
    const std::uint32_t even = below % 2 == 0 ? below : below + 1;
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      const float towards = sign == 0 ? 1.0F : -1.0F;
      values.push_back(middle * towards);
      wanted.push_back(even | sign);
      values.push_back(std::nextafterf(middle, 0) * towards);
      wanted.push_back(below | sign);
      values.push_back(std::nextafterf(middle, HUGE_VALF) * towards);
      wanted.push_back((below + 1) | sign);
    }
  }
  this->expect_narrowed(values, wanted);
}

TYPED_TEST(SixteenBits, BeyondTheRangeIsInfinityAndBelowItZero) {
  this->expect_narrowed(
      {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), HUGE_VALF, -HUGE_VALF,
       std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::denorm_min(), 0.0F, -0.0F},
      {TypeParam::kInfinity, TypeParam::kInfinity | 0x8000, TypeParam::kInfinity, TypeParam::kInfinity | 0x8000, 0,
       0x8000, 0, 0x8000});
}

// Signalling and quiet, of either sign, with payloads that the narrow format has no room for.
TYPED_TEST(SixteenBits, NotANumberStaysOne) {
  for (const std::uint32_t bits : {0x7F800001U, 0xFF800001U, 0x7FC00000U, 0xFFFFFFFFU, 0x7FBFFFFFU, 0x7F801000U}) {
    const auto value = std::bit_cast<float>(bits);
    const std::vector<typename TypeParam::Stored> got = this->narrowed(std::vector<float>(9, value));
    for (const auto& one : got) {
      EXPECT_GT(one.bits & 0x7FFF, TypeParam::kInfinity) << std::hex << bits;
      EXPECT_EQ(one.bits >> 15, bits >> 31) << std::hex << bits;
      EXPECT_EQ(one.bits, this->template narrow_by_formula<1>(value)) << std::hex << bits;
    }
  }
}

}  // namespace
}  // namespace lamina
