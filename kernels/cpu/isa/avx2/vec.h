// Eight floats: AVX2 with FMA.
#pragma once

#include <immintrin.h>

namespace msctx::avx2 {

static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

struct Vec {
  static constexpr int width = 8;
  __m256 v;

  static Vec all(float x) { return {_mm256_set1_ps(x)}; }
  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const float* p, int count) {  // the first `count` lanes, zeros after them
    return count >= width ? load(p) : Vec{_mm256_maskload_ps(p, mask(count))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(float* p, int count) const {
    if (count >= width)
      store(p);
    else
      _mm256_maskstore_ps(p, mask(count), v);
  }
  static __m256i mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

static inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline Vec maximum(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }   // b, where one is NaN
static inline Vec minimum(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }  // likewise
// Or where one is NaN.
static inline bool any_above(Vec a, Vec b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_NLE_UQ)) != 0; }
// 2^n for whole numbers from -126 to 128: the last is Inf.
static inline Vec power_of_two(Vec n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
static inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b

constexpr int registers = 16;  // of vectors

// Element j of v[i] and element i of v[j] change places.
static inline void transpose(Vec v[Vec::width]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 4) {  // 4x4 blocks, within each 16 bytes
    for (int j = 0; j < 4; j += 2) {
      a[i + j] = _mm256_unpacklo_ps(v[i + j].v, v[i + j + 1].v);
      a[i + j + 1] = _mm256_unpackhi_ps(v[i + j].v, v[i + j + 1].v);
    }
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  }
  for (int j = 0; j < 4; j++) {  // and the blocks as wholes
    v[j] = {_mm256_permute2f128_ps(b[j], b[4 + j], 0x20)};
    v[4 + j] = {_mm256_permute2f128_ps(b[j], b[4 + j], 0x31)};
  }
}

// The block of a matmul that stays in registers: rows x (vectors * Vec::width).
constexpr int tile_rows = 6, tile_vectors = 2;

}  // namespace msctx::avx2
