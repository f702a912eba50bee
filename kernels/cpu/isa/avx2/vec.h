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
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
static inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b

// The block of a matrix product that stays in registers: rows x (vectors * Vec::width).
constexpr int tile_rows = 6, tile_vectors = 2;

}  // namespace msctx::avx2
