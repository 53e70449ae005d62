// Packs: V values of a row handled together, and the elementary functions on them. On the CPU a pack is a SIMD
// register (V = 1: a plain number); in CUDA sources it is a small aligned array, moved by 16-byte accesses.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define LAMINA_DEVICE __device__ __forceinline__
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LAMINA_DEVICE inline  // inlining everything by force makes instrumented code take minutes to compile
#else
#define LAMINA_DEVICE inline __attribute__((always_inline))
#endif

namespace lamina::kernels {

template <class A>
inline constexpr A kInfinity = std::numeric_limits<A>::infinity();

// The two representations of a pack must never meet under one name in one program.
#ifdef __CUDACC__
inline namespace array_packs {
#else
inline namespace vector_packs {
#endif

namespace detail {
template <class T, int V>
struct LanesOf {
#ifdef __CUDACC__
  using type = T[V];
#else
  typedef T type __attribute__((vector_size(V * sizeof(T))));
#endif
};
#ifndef __CUDACC__
template <class T>
struct LanesOf<T, 1> {
  using type = T;
};
#endif
constexpr int pack_alignment(int bytes) { return bytes >= 16 ? 16 : bytes; }
}  // namespace detail

// V values of type T; V is a power of two.
template <class T, int V>
struct
#ifdef __CUDACC__
    alignas(detail::pack_alignment(V * sizeof(T)))
#endif
        Pack {
  using Lanes = typename detail::LanesOf<T, V>::type;
  Lanes lanes;

  Pack() = default;
  LAMINA_DEVICE Pack(T value) {  // in every lane; implicit, so that numbers mix with packs in formulas
#ifdef __CUDACC__
    for (int lane = 0; lane < V; ++lane) {
      lanes[lane] = value;
    }
#else
    lanes = value - Lanes{};
#endif
  }
  LAMINA_DEVICE T operator[](int lane) const {
#ifndef __CUDACC__
    if constexpr (V == 1) {
      return lanes;
    } else
#endif
      return lanes[lane];
  }
  LAMINA_DEVICE void set(int lane, T value) {
#ifndef __CUDACC__
    if constexpr (V == 1) {
      lanes = value;
    } else
#endif
      lanes[lane] = value;
  }
};

// f in every lane. f is written for numbers; on the CPU it receives whole registers.
template <class F, class T, int V, class... Others>
LAMINA_DEVICE Pack<T, V> map(F f, const Pack<T, V>& first, const Others&... others) {
  Pack<T, V> result;
#ifdef __CUDACC__
  for (int lane = 0; lane < V; ++lane) {
    result.lanes[lane] = f(first.lanes[lane], others.lanes[lane]...);
  }
#else
  result.lanes = f(first.lanes, others.lanes...);
#endif
  return result;
}

// f in every lane, one lane after the other: for functions that have no form on registers.
template <class F, class T, int V>
LAMINA_DEVICE Pack<T, V> map_lanes(F f, const Pack<T, V>& values) {
  Pack<T, V> result;
  for (int lane = 0; lane < V; ++lane) {
    result.set(lane, f(values[lane]));
  }
  return result;
}

#define LAMINA_PACK_OPERATOR(op)                                                         \
  template <class T, int V>                                                              \
  LAMINA_DEVICE Pack<T, V> operator op(const Pack<T, V>& a, const Pack<T, V>& b) {       \
    return map([](auto x, auto y) { return x op y; }, a, b);                             \
  }                                                                                      \
  template <class T, int V>                                                              \
  LAMINA_DEVICE Pack<T, V> operator op(const Pack<T, V>& a, std::type_identity_t<T> b) { \
    return a op Pack<T, V>(b);                                                           \
  }                                                                                      \
  template <class T, int V>                                                              \
  LAMINA_DEVICE Pack<T, V> operator op(std::type_identity_t<T> a, const Pack<T, V>& b) { \
    return Pack<T, V>(a) op b;                                                           \
  }
LAMINA_PACK_OPERATOR(+)
LAMINA_PACK_OPERATOR(-)
LAMINA_PACK_OPERATOR(*)
LAMINA_PACK_OPERATOR(/)
LAMINA_PACK_OPERATOR(<<)
LAMINA_PACK_OPERATOR(>>)
LAMINA_PACK_OPERATOR(&)
LAMINA_PACK_OPERATOR(|)
#undef LAMINA_PACK_OPERATOR

// a < b ? x : y
template <class T, int V>
LAMINA_DEVICE Pack<T, V> select_less(const Pack<T, V>& a, std::type_identity_t<Pack<T, V>> b,
                                     std::type_identity_t<Pack<T, V>> x, std::type_identity_t<Pack<T, V>> y) {
  return map([](auto a_, auto b_, auto x_, auto y_) { return a_ < b_ ? x_ : y_; }, a, b, x, y);
}

template <class T, int V>
LAMINA_DEVICE Pack<T, V> maximum(const Pack<T, V>& a, const Pack<T, V>& b) {
  return select_less(a, b, b, a);
}

// The same bits as another type of the same size.
template <class To, class T, int V>
LAMINA_DEVICE Pack<To, V> reinterpret(const Pack<T, V>& values) {
  static_assert(sizeof(To) == sizeof(T));
  Pack<To, V> result;
  std::memcpy(&result.lanes, &values.lanes, sizeof(result.lanes));
  return result;
}

template <class To, class T, int V>
LAMINA_DEVICE Pack<To, V> convert(const Pack<T, V>& values) {
  if constexpr (std::is_same_v<To, T>) {
    return values;
  } else {
    Pack<To, V> result;
#ifndef __CUDACC__
    if constexpr (V > 1) {
      result.lanes = __builtin_convertvector(values.lanes, typename Pack<To, V>::Lanes);
      return result;
    }
#endif
    for (int lane = 0; lane < V; ++lane) {
      result.set(lane, static_cast<To>(values[lane]));
    }
    return result;
  }
}

template <class T, int V>
LAMINA_DEVICE T sum_of_lanes(const Pack<T, V>& values) {
  T partial[V];
  for (int lane = 0; lane < V; ++lane) {
    partial[lane] = values[lane];
  }
  for (int half = V / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      partial[lane] += partial[lane + half];
    }
  }
  return partial[0];
}

template <class T, int V>
LAMINA_DEVICE T maximum_of_lanes(const Pack<T, V>& values) {
  T result = values[0];
  for (int lane = 1; lane < V; ++lane) {
    result = result < values[lane] ? values[lane] : result;
  }
  return result;
}

template <int V>
LAMINA_DEVICE Pack<float, V> square_root(const Pack<float, V>& x) {
  return map_lanes([](float value) { return sqrtf(value); }, x);
}
template <int V>
LAMINA_DEVICE Pack<double, V> square_root(const Pack<double, V>& x) {
  return map_lanes([](double value) { return ::sqrt(value); }, x);
}

// e^x. In float without branches, within 2 ulp: x = n·ln 2 + r with |r| <= ln 2 / 2, and the polynomial of Cephes'
// expf for e^r. Overflows to infinity, underflows through the denormals to 0, keeps NaN.
template <int V>
LAMINA_DEVICE Pack<float, V> exponential(const Pack<float, V>& argument) {
  constexpr float kRounding = 12582912.0F;  // 1.5·2^23: adding it rounds to an integer, which the low bits then hold
  constexpr std::uint32_t kRoundingBits = 0x4B400000;
  constexpr std::uint32_t kBias = 127;
  using Floats = Pack<float, V>;
  using Bits = Pack<std::uint32_t, V>;
  Floats x = select_less(argument, -104.0F, -104.0F, argument);
  x = select_less(Floats(89.0F), x, 89.0F, x);
  const Floats shifted = x * 1.44269504088896341F + kRounding;
  const Floats n = shifted - kRounding;
  const Floats r = (x - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts, the first exact times n
  Floats polynomial = r * 1.9875691500e-4F + 1.3981999507e-3F;
  polynomial = polynomial * r + 8.3334519073e-3F;
  polynomial = polynomial * r + 4.1665795894e-2F;
  polynomial = polynomial * r + 1.6666665459e-1F;
  polynomial = polynomial * r + 5.0000001201e-1F;
  polynomial = polynomial * (r * r) + (r + 1.0F);
  // 2^n as a product of two powers, since n reaches from -150 to 128. Offset by 256 the integer stays positive.
  const Bits integer = reinterpret<std::uint32_t>(shifted) - (kRoundingBits - 256);
  const Bits half = integer >> 1;
  const Floats low = reinterpret<float>((half - (128 - kBias)) << 23);
  const Floats high = reinterpret<float>((integer - half - (128 - kBias)) << 23);
  return polynomial * low * high;
}
template <int V>
LAMINA_DEVICE Pack<double, V> exponential(const Pack<double, V>& x) {
  return map_lanes([](double value) { return ::exp(value); }, x);
}

// A place in a row: W elements from `index` on.
template <int W>
struct At {
  static constexpr int width = W;
  std::int64_t index;
};

// Elements of an array at a place of a row, converted to the type that the arithmetic uses. In CUDA sources packs of
// more than one element must be aligned to their size (16 bytes at most).
template <class A, int W, class T>
LAMINA_DEVICE Pack<A, W> load(At<W> at, const T* row) {
#ifdef __CUDACC__
  return convert<A>(*reinterpret_cast<const Pack<T, W>*>(row + at.index));
#else
  Pack<T, W> values;
  std::memcpy(&values.lanes, row + at.index, sizeof(values.lanes));
  return convert<A>(values);
#endif
}

template <class A, int W, class T>
LAMINA_DEVICE void store(At<W> at, T* row, const Pack<A, W>& values) {
  const Pack<T, W> converted = convert<T>(values);
#ifdef __CUDACC__
  *reinterpret_cast<Pack<T, W>*>(row + at.index) = converted;
#else
  std::memcpy(row + at.index, &converted.lanes, sizeof(converted.lanes));
#endif
}

// A worker's partial sum or maximum of a row takes in a pack, which is narrower at the row's end.
template <class T, int V, int W>
LAMINA_DEVICE void accumulate(Pack<T, V>& total, const Pack<T, W>& values) {
  if constexpr (V == W) {
    total = total + values;
  } else {
    for (int lane = 0; lane < W; ++lane) {
      total.set(lane, total[lane] + values[lane]);
    }
  }
}
template <class T, int V, int W>
LAMINA_DEVICE void accumulate_maximum(Pack<T, V>& total, const Pack<T, W>& values) {
  if constexpr (V == W) {
    total = maximum(total, values);
  } else {
    for (int lane = 0; lane < W; ++lane) {
      total.set(lane, total[lane] < values[lane] ? values[lane] : total[lane]);
    }
  }
}

// The values at places below `limit` of the row; `other` in the lanes from there on.
template <class T, int W>
LAMINA_DEVICE Pack<T, W> keep_below(At<W> at, std::int64_t limit, const Pack<T, W>& values, T other) {
  if (at.index + W <= limit) {
    return values;
  }
  Pack<T, W> place;
  for (int lane = 0; lane < W; ++lane) {
    place.set(lane, static_cast<T>(lane));
  }
  return select_less(place, static_cast<T>(limit - at.index), values, other);
}

}  // namespace array_packs or vector_packs

}  // namespace lamina::kernels
