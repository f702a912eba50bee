// The four element types: how they widen, how they round, and how a function template is called for one of them.
#pragma once

#include <cstring>

#include "msctx/conv.h"

namespace msctx::MSCTX_ISA {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

static inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float to_float(float v) { return v; }
static inline float to_float(BFloat16 v) { return as_float(uint32_t(v.bits) << 16); }
static inline float to_float(Half v) {
  const uint32_t sign = uint32_t(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return as_float(sign | ((rest << 13) + (112u << 23)));
  const float tiny = float(rest) * 0x1p-24f;  // subnormal: exact in float
  return as_float(sign | as_bits(tiny));
}
// To the type in which products are summed.
static inline double widen(double v) { return v; }
template <class T>
static inline float widen(T v) {
  return to_float(v);
}
static inline double to_double(double v) { return v; }
template <class T>
static inline double to_double(T v) {
  return double(to_float(v));
}

// Rounds to nearest, ties to even, once: from double directly, since two roundings can differ from one.
template <class T>
static inline T from_double(double v);
template <>
inline double from_double<double>(double v) {
  return v;
}
template <>
inline float from_double<float>(double v) {
  return float(v);
}
template <class T, int significand, int bias, int largest>
static inline T round_to_16(double v) {
  uint64_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  const uint16_t sign = uint16_t(bits >> 48 & 0x8000);
  const uint64_t magnitude = bits & 0x7fffffffffffffffull;
  constexpr int drop = 52 - significand;
  constexpr uint16_t infinite = uint16_t(largest << significand);
  if (magnitude > 0x7ff0000000000000ull) return T{uint16_t(sign | infinite | 1u << (significand - 1))};
  const int exponent = int(magnitude >> 52) - 1023 + bias;
  if (exponent >= largest) return T{uint16_t(sign | infinite)};
  const int shift = drop + (exponent > 0 ? 0 : 1 - exponent);  // subnormal results lose more
  if (shift > 54) return T{sign};
  const uint64_t implicit = magnitude >> 52 ? 1ull << 52 : 0;
  const uint64_t fraction = (magnitude & 0xfffffffffffffull) | implicit;
  const uint64_t half = 1ull << (shift - 1), below = fraction & ((half << 1) - 1);
  uint64_t kept = fraction >> shift;
  if (below > half || (below == half && (kept & 1))) kept++;
  if (exponent > 0) kept += uint64_t(exponent - 1) << significand;  // the implicit one adds the last unit of the exponent
  return T{uint16_t(sign | kept)};
}
template <>
inline Half from_double<Half>(double v) {
  return round_to_16<Half, 10, 15, 31>(v);
}
template <>
inline BFloat16 from_double<BFloat16>(double v) {
  return round_to_16<BFloat16, 7, 127, 255>(v);
}

// The type in which products of T are summed.
template <class T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};

// Half a unit in the last place of 1: the largest relative error of one rounding.
static inline double rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f16: return 0x1p-11;
    case DType::bf16: return 0x1p-8;
    default: return 0x1p-24;
  }
}

// body(T{}) for the element type of dtype.
template <class Body>
static inline void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32: return body(float{});
    case DType::f64: return body(double{});
    case DType::f16: return body(Half{});
    case DType::bf16: return body(BFloat16{});
  }
}

}  // namespace msctx::MSCTX_ISA
