// Four floats, for any processor. Where there is no FMA instruction it is computed exactly, so that the bits are those of the others.
#pragma once

#include <cstdint>
#include <cstring>

namespace msctx::generic {

#ifdef __FP_FAST_FMAF
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
// The product of two floats is exact in double. Their sum is rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly
// rounded sums", IEEE TC 57, 2008), so that rounding it once more, to float, gives what one rounding would have.
static inline float fma(float a, float b, float c) {
  const double p = double(a) * double(b), d = double(c);
  const double s = p + d;
  const double t = s - p;
  const double e = (p - (s - t)) + (d - t);  // s + e is the exact sum (Knuth's two-sum)
  int64_t bits;
  std::memcpy(&bits, &s, sizeof bits);
  if (e != 0.0 && (bits & 1) == 0 && s - s == 0.0) bits += (e > 0.0) == (s > 0.0) ? 1 : -1;
  double odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return float(odd);
}
#endif
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Under a sanitizer every inlined copy is instrumented by itself, and compiling would take many minutes.
#ifdef __SANITIZE_ADDRESS__
#define MSCTX_INLINE __attribute__((noinline)) static
#else
#define MSCTX_INLINE static inline
#endif

struct Vec {
  static constexpr int width = 4;
  float v[width];

  static Vec all(float x) { return {{x, x, x, x}}; }
  static Vec zero() { return all(0.0f); }
  static Vec load(const float* p) {
    Vec r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  static Vec load(const float* p, int count) {  // the first `count` lanes, zeros after them
    Vec r = zero();
    for (int i = 0; i < count && i < width; i++) r.v[i] = p[i];
    return r;
  }
  void store(float* p) const { std::memcpy(p, v, sizeof v); }
  void store(float* p, int count) const {
    for (int i = 0; i < count && i < width; i++) p[i] = v[i];
  }
};

#define MSCTX_LANES(expression)                       \
  Vec r;                                              \
  for (int i = 0; i < Vec::width; i++) r.v[i] = expression; \
  return r
MSCTX_INLINE Vec operator+(Vec a, Vec b) { MSCTX_LANES(a.v[i] + b.v[i]); }
MSCTX_INLINE Vec operator-(Vec a, Vec b) { MSCTX_LANES(a.v[i] - b.v[i]); }
MSCTX_INLINE Vec operator*(Vec a, Vec b) { MSCTX_LANES(a.v[i] * b.v[i]); }
MSCTX_INLINE Vec operator/(Vec a, Vec b) { MSCTX_LANES(a.v[i] / b.v[i]); }
MSCTX_INLINE Vec maximum(Vec a, Vec b) { MSCTX_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }   // b, where one is NaN
MSCTX_INLINE Vec minimum(Vec a, Vec b) { MSCTX_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }  // likewise
MSCTX_INLINE Vec fma(Vec a, Vec b, Vec c) { MSCTX_LANES(fma(a.v[i], b.v[i], c.v[i])); }    // a * b + c
MSCTX_INLINE Vec fnma(Vec a, Vec b, Vec c) { MSCTX_LANES(fma(-a.v[i], b.v[i], c.v[i])); }  // c - a * b
#undef MSCTX_LANES
// Or where one is NaN.
MSCTX_INLINE bool any_above(Vec a, Vec b) {
  bool found = false;
  for (int i = 0; i < Vec::width; i++) found |= !(a.v[i] <= b.v[i]);
  return found;
}
// 2^n for whole numbers from -126 to 128: the last is Inf.
MSCTX_INLINE Vec power_of_two(Vec n) {
  for (int i = 0; i < Vec::width; i++) {
    const int32_t bits = n.v[i] == n.v[i] ? (int32_t(n.v[i]) + 127) << 23 : 0;
    std::memcpy(&n.v[i], &bits, sizeof bits);
  }
  return n;
}
#undef MSCTX_INLINE

constexpr int registers = 16;  // of vectors

// Element j of v[i] and element i of v[j] change places.
static inline void transpose(Vec v[Vec::width]) {
  for (int i = 0; i < Vec::width; i++)
    for (int j = 0; j < i; j++) {
      const float kept = v[i].v[j];
      v[i].v[j] = v[j].v[i];
      v[j].v[i] = kept;
    }
}

// The block of a matmul that stays in registers: rows x (vectors * Vec::width).
constexpr int tile_rows = 4, tile_vectors = 2;

}  // namespace msctx::generic
