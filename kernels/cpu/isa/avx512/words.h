// Eight 64-bit words: AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace msctx::avx512 {

struct Words {
  __m512i v;
  static Words load(const void* p) { return {_mm512_loadu_si512(p)}; }
  static Words all(uint64_t x) { return {_mm512_set1_epi64(int64_t(x))}; }
  void store(void* p) const { _mm512_storeu_si512(p, v); }
};

static inline Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
static inline Words operator+(Words a, Words b) { return {_mm512_add_epi64(a.v, b.v)}; }
// The product of the two halves of each word.
static inline Words halves_product(Words a) { return {_mm512_mul_epu32(a.v, _mm512_srli_epi64(a.v, 32))}; }
// Words 2i and 2i + 1 change places.
static inline Words swap_pairs(Words a) { return {_mm512_shuffle_epi32(a.v, _MM_PERM_BADC)}; }

}  // namespace msctx::avx512
