// What must be known of float32 values before they are split: their largest, whether all are finite, how far they are spread.
#pragma once

#include "../isa/avx512/vec.h"
#include "split_precision.h"

namespace msctx::MSCTX_ISA {
using avx512::Vec;
}

#include "msctx/epilogue.h"

namespace msctx::MSCTX_ISA {

static inline __mmask16 first(int64_t lanes) {
  return lanes >= 16 ? __mmask16(0xffff) : lanes <= 0 ? __mmask16(0) : __mmask16((1u << lanes) - 1);
}

// A factor in two parts: with one alone, a power of two may be out of range.
struct Scale {
  float mantissa = 1.0f, exponent = 0.0f;
};
// For values of at most `largest`.
template <class S>
static inline Scale scale_up_to(double largest) {
  if (largest == 0.0) return {};
  int exponent;
  const double mantissa = __builtin_frexp(largest, &exponent);
  if (!S::is_fixed_point) return {1.0f, float(S::top_exponent - exponent)};
  float factor = float(S::largest / (mantissa * 0x1p24));  // 1/2 to 1 for three digits
  while (mantissa * 0x1p24 * factor > S::largest) factor = __builtin_nextafterf(factor, 0.0f);
  return {factor, float(24 - exponent)};
}
// The power first: what is denormal keeps its bits.
template <class S>
static inline Floats scaled(Floats v, Floats mantissa, Floats exponent) {
  v = _mm512_scalef_ps(v, exponent);
  return S::is_fixed_point ? _mm512_mul_ps(v, mantissa) : v;
}
template <class S>
static inline Floats scaled(Floats v, const Scale& scale) {
  return scaled<S>(v, _mm512_set1_ps(scale.mantissa), _mm512_set1_ps(scale.exponent));
}

// Takes the scales of both factors from sums of products; those of the second are one for each lane.
template <class S>
struct Unscale {
  Floats mantissa, exponent;
  Unscale(const Scale& scale, const float* mantissas, const float* exponents)
      : mantissa(_mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_mul_ps(_mm512_set1_ps(scale.mantissa), _mm512_loadu_ps(mantissas)))),
        exponent(_mm512_sub_ps(_mm512_set1_ps(float(S::row_exponent) - scale.exponent), _mm512_loadu_ps(exponents))) {}
  Floats operator()(Floats v) const { return _mm512_scalef_ps(S::is_fixed_point ? _mm512_mul_ps(v, mantissa) : v, exponent); }
};

// Of crests: above all of them, and their products.
constexpr double no_limit = __builtin_inf();

// Of some values; of several sets by joining them in a fixed order.
struct Spread {
  uint32_t largest_bits = 0;  // of |value|: Inf and NaN are above all others
  double sum = 0.0;           // of |value|
  int64_t count = 0;          // of those that are not zero

  // Of rows of `count` values, `step` apart.
  static Spread of(const float* values, int64_t count, int64_t rows = 1, int64_t step = 0) {
    Spread found;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    // Sums in pieces, of values that are made smaller: none overflows, and what becomes zero by that is nearly nothing.
    constexpr int64_t piece = 256;
    const Floats smaller_by = _mm512_set1_ps(0x1p-16f);
    __m512i largest = _mm512_setzero_si512();
    Floats sum = _mm512_setzero_ps();
    int64_t added = 0;
    const auto flush = [&] {
      found.sum += double(_mm512_reduce_add_ps(sum)) * 0x1p16;
      sum = _mm512_setzero_ps();
      added = 0;
    };
    for (int64_t row = 0; row < rows; row++, values += step)
      for (int64_t i = 0; i < count; i += 16) {
        const __m512i bits = _mm512_and_si512(_mm512_castps_si512(_mm512_maskz_loadu_ps(first(count - i), values + i)), magnitude);
        largest = _mm512_max_epu32(largest, bits);
        found.count += __builtin_popcount(_mm512_test_epi32_mask(bits, bits));
        sum = _mm512_fmadd_ps(_mm512_castsi512_ps(bits), smaller_by, sum);
        if (++added == piece) flush();
      }
    flush();
    found.largest_bits = _mm512_reduce_max_epu32(largest);
    return found;
  }
  void join(const Spread& more) {
    largest_bits = largest_bits > more.largest_bits ? largest_bits : more.largest_bits;
    sum += more.sum;
    count += more.count;
  }

  float largest() const {
    float value;
    std::memcpy(&value, &largest_bits, sizeof value);
    return value;
  }
  bool is_finite() const { return largest_bits < 0x7f800000; }
  // The largest in units of the usual one: 1 where all are alike, 6 for normally distributed ones.
  double crest() const { return count == 0 ? 1.0 : sum > 0.0 ? double(largest()) * double(count) / sum : 1e300; }

  // By what they are multiplied before they are split. Finite values only.
  template <class S>
  Scale scale() const {
    return scale_up_to<S>(double(largest()));
  }
};

// 16 values, `step` apart, of which those of some neighbouring lanes are there: zeros for the others, which are not read.
static inline Floats strided(const float* from, int64_t step, __mmask16 there) {
  if (step == 1) return _mm512_maskz_loadu_ps(there, from);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (step == 2 && there != 0) {
    const int low = __builtin_ctz(there), high = 32 - __builtin_clz(unsigned(there));
    const uint64_t span = ((uint64_t(1) << (2 * high - 1)) - 1) & ~((uint64_t(1) << (2 * low)) - 1);
    const Floats a = _mm512_maskz_loadu_ps(__mmask16(span), from), b = _mm512_maskz_loadu_ps(__mmask16(span >> 16), from + 16);
    return _mm512_permutex2var_ps(a, _mm512_add_epi32(lane, lane), b);
  }
  return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, _mm512_mullo_epi32(lane, _mm512_set1_epi32(int(step))), from, 4);
}

static inline void transpose(Floats rows[16]) {
  Vec v[16];
  for (int i = 0; i < 16; i++) v[i].v = rows[i];
  avx512::transpose(v);
  for (int i = 0; i < 16; i++) rows[i] = v[i].v;
}

}  // namespace msctx::MSCTX_ISA
