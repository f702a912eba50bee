// Sixteen floats: AVX-512.
#pragma once

#include <immintrin.h>

namespace msctx::avx512 {

static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

struct Vec {
  static constexpr int width = 16;
  __m512 v;

  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const float* p, int count) { return {_mm512_maskz_loadu_ps(mask(count), p)}; }  // zeros after `count` lanes
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, int count) const { _mm512_mask_storeu_ps(p, mask(count), v); }
  static __mmask16 mask(int count) { return count >= width ? __mmask16(0xffff) : __mmask16((1u << count) - 1); }
};

static inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// The forms with a mask, of all lanes: gcc 12 warns of the others.
static inline Vec maximum(Vec a, Vec b) { return {_mm512_maskz_max_ps(0xffff, a.v, b.v)}; }   // b, where one is NaN
static inline Vec minimum(Vec a, Vec b) { return {_mm512_maskz_min_ps(0xffff, a.v, b.v)}; }  // likewise
// Or where one is NaN.
static inline bool any_above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NLE_UQ) != 0; }
// 2^n for whole numbers from -126 to 128: the last is Inf.
static inline Vec power_of_two(Vec n) {
  const __m512i biased = _mm512_add_epi32(_mm512_maskz_cvtps_epi32(0xffff, n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, biased, 23))};
}
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
static inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b

constexpr int registers = 32;  // of vectors

// Element j of v[i] and element i of v[j] change places. The forms with a mask, of all lanes: gcc 12 warns of the others.
static inline void transpose(Vec v[Vec::width]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 4) {  // 4x4 blocks, within each 16 bytes
    for (int j = 0; j < 4; j += 2) {
      a[i + j] = _mm512_maskz_unpacklo_ps(0xffff, v[i + j].v, v[i + j + 1].v);
      a[i + j + 1] = _mm512_maskz_unpackhi_ps(0xffff, v[i + j].v, v[i + j + 1].v);
    }
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm512_maskz_shuffle_ps(0xffff, a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm512_maskz_shuffle_ps(0xffff, a[i + j], a[i + j + 2], 0xee);
    }
  }
  const auto even = [](__m512 x, __m512 y) { return _mm512_maskz_shuffle_f32x4(0xffff, x, y, 0x88); };
  const auto odd = [](__m512 x, __m512 y) { return _mm512_maskz_shuffle_f32x4(0xffff, x, y, 0xdd); };
  for (int j = 0; j < 4; j++) {  // and the blocks as wholes
    const __m512 even0 = even(b[j], b[4 + j]), even1 = even(b[8 + j], b[12 + j]);
    const __m512 odd0 = odd(b[j], b[4 + j]), odd1 = odd(b[8 + j], b[12 + j]);
    v[j] = {even(even0, even1)};
    v[4 + j] = {even(odd0, odd1)};
    v[8 + j] = {odd(even0, even1)};
    v[12 + j] = {odd(odd0, odd1)};
  }
}

// The block of a matmul that stays in registers: rows x (vectors * Vec::width).
constexpr int tile_rows = 12, tile_vectors = 2;

}  // namespace msctx::avx512
