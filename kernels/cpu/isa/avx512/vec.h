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
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
static inline Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b

// The block of a matrix product that stays in registers: rows x (vectors * Vec::width).
constexpr int tile_rows = 12, tile_vectors = 2;

}  // namespace msctx::avx512
