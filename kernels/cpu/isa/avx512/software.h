// The intrinsics of AVX-512 that vec.h and ../../tiles use, lane by lane: so that a processor without AVX-512 can test what uses them.
// Only their names and how Intel's manual describes them matter here; see there.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

using __mmask8 = uint8_t;
using __mmask16 = uint16_t;
using __mmask64 = uint64_t;

#define MSCTX_VECTOR(name, element, bytes) typedef element name __attribute__((vector_size(bytes), may_alias))
MSCTX_VECTOR(__m128, float, 16);
MSCTX_VECTOR(__m128i, long long, 16);
MSCTX_VECTOR(__m256i, long long, 32);
MSCTX_VECTOR(__m512, float, 64);
MSCTX_VECTOR(__m512d, double, 64);
MSCTX_VECTOR(__m512i, long long, 64);

namespace msctx_software {
MSCTX_VECTOR(Int32, int32_t, 64);
MSCTX_VECTOR(Uint32, uint32_t, 64);
MSCTX_VECTOR(Uint8, uint8_t, 64);
MSCTX_VECTOR(Uint8x16, uint8_t, 16);
MSCTX_VECTOR(Uint16, uint16_t, 32);
template <class To, class From>
static inline To as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)v;
}
template <class V>
static inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class V>
static inline void store(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}
// A vector whose lane i is body(i).
template <class V, int lanes, class Body>
static inline __attribute__((always_inline)) V each(const Body& body) {
  V v{};
  for (int i = 0; i < lanes; i++) v[i] = body(i);
  return v;
}
// Lane `at` of b, or of a. Not `(of_b ? b : a)[at]`: GCC 12.2 moves that subscript to both sides, whatever is subscripted, and with
// -fsanitize=undefined computes what it has in common (sums, shifts, quotients) on the first side alone. The other reads anything:
//   [[gnu::noinline]] int pick(int i, const int* a, const int* b) { return (i & 1 ? b : a)[i / 2]; }  // pick(4, a, b) is not a[2]
template <class V>
static inline __attribute__((always_inline)) auto lane(const V& a, const V& b, bool of_b, int at) {
  return of_b ? b[at] : a[at];
}
}  // namespace msctx_software

#undef MSCTX_VECTOR
#define MSCTX_I static inline __attribute__((always_inline))
#define MSCTX_S msctx_software

MSCTX_I __m512 _mm512_setzero_ps() { return __m512{}; }
MSCTX_I __m512i _mm512_setzero_si512() { return __m512i{}; }
MSCTX_I __m512 _mm512_set1_ps(float x) { return __m512{} + x; }
MSCTX_I __m512i _mm512_set1_epi32(int x) { return (__m512i)(MSCTX_S::Int32{} + x); }
MSCTX_I __m512i _mm512_setr_epi32(
    int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m, int n, int o, int p) {
  return (__m512i)MSCTX_S::Int32{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
}
MSCTX_I __m512 _mm512_castsi512_ps(__m512i v) { return (__m512)v; }
MSCTX_I __m512i _mm512_castps_si512(__m512 v) { return (__m512i)v; }
MSCTX_I __m512d _mm512_castps_pd(__m512 v) { return (__m512d)v; }
MSCTX_I __m512 _mm512_castpd_ps(__m512d v) { return (__m512)v; }

MSCTX_I __m512 _mm512_loadu_ps(const void* p) { return MSCTX_S::load<__m512>(p); }
MSCTX_I __m512 _mm512_load_ps(const void* p) { return MSCTX_S::load<__m512>(p); }
MSCTX_I __m512i _mm512_load_si512(const void* p) { return MSCTX_S::load<__m512i>(p); }
MSCTX_I __m128 _mm_load_ps(const float* p) { return MSCTX_S::load<__m128>(p); }
MSCTX_I void _mm512_storeu_ps(void* p, __m512 v) { MSCTX_S::store(p, v); }
MSCTX_I void _mm512_store_ps(void* p, __m512 v) { MSCTX_S::store(p, v); }
MSCTX_I void _mm512_storeu_si512(void* p, __m512i v) { MSCTX_S::store(p, v); }
MSCTX_I void _mm512_store_si512(void* p, __m512i v) { MSCTX_S::store(p, v); }
MSCTX_I void _mm256_storeu_si256(__m256i* p, __m256i v) { MSCTX_S::store(p, v); }
MSCTX_I void _mm_storeu_si128(__m128i* p, __m128i v) { MSCTX_S::store(p, v); }
// Lanes that are masked are neither read nor written.
MSCTX_I __m512 _mm512_maskz_loadu_ps(__mmask16 m, const float* p) {
  return m == 0xffff ? _mm512_loadu_ps(p) : MSCTX_S::each<__m512, 16>([&](int i) { return m >> i & 1 ? p[i] : 0.0f; });
}
MSCTX_I void _mm512_mask_storeu_ps(float* p, __mmask16 m, __m512 v) {
  for (int i = 0; i < 16; i++)
    if (m >> i & 1) p[i] = v[i];
}
MSCTX_I void _mm_mask_storeu_ps(float* p, __mmask8 m, __m128 v) {
  for (int i = 0; i < 4; i++)
    if (m >> i & 1) p[i] = v[i];
}
MSCTX_I __m512 _mm512_mask_i32gather_ps(__m512 v, __mmask16 m, __m512i index, const float* p, int scale) {
  const auto at = MSCTX_S::as<MSCTX_S::Int32>(index);
  return MSCTX_S::each<__m512, 16>([&](int i) { return m >> i & 1 ? p[int64_t(at[i]) * (scale / 4)] : v[i]; });
}
MSCTX_I void _mm512_mask_i32scatter_ps(float* p, __mmask16 m, __m512i index, __m512 v, int scale) {
  const auto at = MSCTX_S::as<MSCTX_S::Int32>(index);
  for (int i = 0; i < 16; i++)
    if (m >> i & 1) p[int64_t(at[i]) * (scale / 4)] = v[i];
}

MSCTX_I __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
MSCTX_I __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
MSCTX_I __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
MSCTX_I __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
MSCTX_I __m512 _mm512_maskz_max_ps(__mmask16 m, __m512 a, __m512 b) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return m >> i & 1 ? (a[i] > b[i] ? a[i] : b[i]) : 0.0f; });
}
MSCTX_I __m512 _mm512_maskz_min_ps(__mmask16 m, __m512 a, __m512 b) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return m >> i & 1 ? (a[i] < b[i] ? a[i] : b[i]) : 0.0f; });
}
MSCTX_I __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return __builtin_fmaf(a[i], b[i], c[i]); });
}
MSCTX_I __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(-a, b, c); }
MSCTX_I __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  return MSCTX_S::each<__m512, 16>([&](int i) {
    const float power = b[i] < -1000.0f ? -1000.0f : b[i] > 1000.0f ? 1000.0f : b[i];
    return __builtin_ldexpf(a[i], int(__builtin_floorf(power)));
  });
}
MSCTX_I float _mm512_reduce_add_ps(__m512 v) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) v[i] += v[i + step];
  return v[0];
}

MSCTX_I __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((MSCTX_S::Uint32)a + (MSCTX_S::Uint32)b); }
MSCTX_I __m512i _mm512_mullo_epi32(__m512i a, __m512i b) { return (__m512i)((MSCTX_S::Uint32)a * (MSCTX_S::Uint32)b); }
MSCTX_I __m512i _mm512_slli_epi32(__m512i a, unsigned n) { return n > 31 ? __m512i{} : (__m512i)((MSCTX_S::Uint32)a << n); }
MSCTX_I __m512i _mm512_srli_epi32(__m512i a, unsigned n) { return n > 31 ? __m512i{} : (__m512i)((MSCTX_S::Uint32)a >> n); }
MSCTX_I __m512i _mm512_srai_epi32(__m512i a, unsigned n) { return (__m512i)((MSCTX_S::Int32)a >> (n > 31 ? 31u : n)); }
MSCTX_I __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
MSCTX_I __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
MSCTX_I __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
MSCTX_I __m512i _mm512_max_epu32(__m512i a, __m512i b) {
  const auto x = MSCTX_S::as<MSCTX_S::Uint32>(a), y = MSCTX_S::as<MSCTX_S::Uint32>(b);
  return (__m512i)(x > y ? x : y);
}
MSCTX_I __m512i _mm512_mask_max_epu32(__m512i v, __mmask16 m, __m512i a, __m512i b) {
  const auto old = MSCTX_S::as<MSCTX_S::Int32>(v), both = MSCTX_S::as<MSCTX_S::Int32>(_mm512_max_epu32(a, b));
  return (__m512i)MSCTX_S::each<MSCTX_S::Int32, 16>([&](int i) { return m >> i & 1 ? both[i] : old[i]; });
}
MSCTX_I uint32_t _mm512_reduce_max_epu32(__m512i v) {
  const auto each = MSCTX_S::as<MSCTX_S::Uint32>(v);
  uint32_t largest = 0;
  for (int i = 0; i < 16; i++) largest = each[i] > largest ? each[i] : largest;
  return largest;
}
MSCTX_I __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  const auto both = MSCTX_S::as<MSCTX_S::Int32>(a & b);
  unsigned found = 0;
  for (int i = 0; i < 16; i++) found |= unsigned(both[i] != 0) << i;
  return __mmask16(found);
}
MSCTX_I __m512i _mm512_mask_blend_epi8(__mmask64 m, __m512i a, __m512i b) {
  const auto x = MSCTX_S::as<MSCTX_S::Uint8>(a), y = MSCTX_S::as<MSCTX_S::Uint8>(b);
  return (__m512i)MSCTX_S::each<MSCTX_S::Uint8, 64>([&](int i) { return m >> i & 1 ? y[i] : x[i]; });
}

// The nearest, ties to even; what is out of range is the smallest integer.
MSCTX_I __m512i _mm512_cvtps_epi32(__m512 v) {
  return (__m512i)MSCTX_S::each<MSCTX_S::Int32, 16>([&](int i) {
    const float rounded = __builtin_rintf(v[i]);
    return rounded >= -0x1p31f && rounded < 0x1p31f ? int32_t(rounded) : INT32_MIN;
  });
}
MSCTX_I __m512i _mm512_maskz_cvtps_epi32(__mmask16 m, __m512 v) {
  const auto all = MSCTX_S::as<MSCTX_S::Int32>(_mm512_cvtps_epi32(v));
  return (__m512i)MSCTX_S::each<MSCTX_S::Int32, 16>([&](int i) { return m >> i & 1 ? all[i] : 0; });
}
MSCTX_I __m512i _mm512_maskz_slli_epi32(__mmask16 m, __m512i a, unsigned n) {
  const auto all = MSCTX_S::as<MSCTX_S::Int32>(_mm512_slli_epi32(a, n));
  return (__m512i)MSCTX_S::each<MSCTX_S::Int32, 16>([&](int i) { return m >> i & 1 ? all[i] : 0; });
}
MSCTX_I __m512 _mm512_cvtepi32_ps(__m512i v) {
  const auto x = MSCTX_S::as<MSCTX_S::Int32>(v);
  return MSCTX_S::each<__m512, 16>([&](int i) { return float(x[i]); });
}
MSCTX_I __m128i _mm512_cvtepi32_epi8(__m512i v) {
  const auto x = MSCTX_S::as<MSCTX_S::Uint32>(v);
  return (__m128i)MSCTX_S::each<MSCTX_S::Uint8x16, 16>([&](int i) { return uint8_t(x[i]); });
}
MSCTX_I __m256i _mm512_cvtepi32_epi16(__m512i v) {
  const auto x = MSCTX_S::as<MSCTX_S::Uint32>(v);
  return (__m256i)MSCTX_S::each<MSCTX_S::Uint16, 16>([&](int i) { return uint16_t(x[i]); });
}
MSCTX_I __m512i _mm512_cvtepu16_epi32(__m256i v) {
  const auto x = MSCTX_S::as<MSCTX_S::Uint16>(v);
  return (__m512i)MSCTX_S::each<MSCTX_S::Uint32, 16>([&](int i) { return uint32_t(x[i]); });
}
enum { _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8 };
MSCTX_I __m256i _mm512_cvtps_ph(__m512 v, int) {
  return (__m256i)MSCTX_S::each<MSCTX_S::Uint16, 16>([&](int i) {
    const _Float16 half = _Float16(v[i]);
    return __builtin_bit_cast(uint16_t, half);
  });
}
MSCTX_I __m512 _mm512_cvtph_ps(__m256i v) {
  const auto x = MSCTX_S::as<MSCTX_S::Uint16>(v);
  return MSCTX_S::each<__m512, 16>([&](int i) { return float(__builtin_bit_cast(_Float16, uint16_t(x[i]))); });
}

// Within each 16 bytes.
MSCTX_I __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return MSCTX_S::lane(a, b, i & 1, (i & ~3) + (i & 3) / 2); });
}
MSCTX_I __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return MSCTX_S::lane(a, b, i & 1, (i & ~3) + 2 + (i & 3) / 2); });
}
MSCTX_I __m512d _mm512_unpacklo_pd(__m512d a, __m512d b) {
  return MSCTX_S::each<__m512d, 8>([&](int i) { return MSCTX_S::lane(a, b, i & 1, i & ~1); });
}
MSCTX_I __m512d _mm512_unpackhi_pd(__m512d a, __m512d b) {
  return MSCTX_S::each<__m512d, 8>([&](int i) { return MSCTX_S::lane(a, b, i & 1, i | 1); });
}
MSCTX_I __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int order) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return MSCTX_S::lane(a, b, i >= 8, (order >> (2 * (i / 4)) & 3) * 4 + i % 4); });
}
MSCTX_I __m512 _mm512_permutex2var_ps(__m512 a, __m512i index, __m512 b) {
  const auto at = MSCTX_S::as<MSCTX_S::Int32>(index);
  return MSCTX_S::each<__m512, 16>([&](int i) { return MSCTX_S::lane(a, b, at[i] & 16, at[i] & 15); });
}
// With a mask: of all lanes is how they are used.
MSCTX_I __m512 _mm512_maskz_unpacklo_ps(__mmask16, __m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); }
MSCTX_I __m512 _mm512_maskz_unpackhi_ps(__mmask16, __m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); }
MSCTX_I __m512 _mm512_maskz_shuffle_f32x4(__mmask16, __m512 a, __m512 b, int order) { return _mm512_shuffle_f32x4(a, b, order); }
MSCTX_I __m512 _mm512_maskz_shuffle_ps(__mmask16, __m512 a, __m512 b, int order) {
  return MSCTX_S::each<__m512, 16>([&](int i) { return MSCTX_S::lane(a, b, i % 4 >= 2, (i & ~3) + (order >> (2 * (i % 4)) & 3)); });
}

#undef MSCTX_I
#undef MSCTX_S
