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
// With a mask of all lanes, since GCC 12 warns of what it does not initialise in those without.
// The product of the two halves of each word.
static inline Words halves_product(Words a) { return {_mm512_maskz_mul_epu32(0xff, a.v, _mm512_maskz_srli_epi64(0xff, a.v, 32))}; }
// Words 2i and 2i + 1 change places.
static inline Words swap_pairs(Words a) { return {_mm512_maskz_shuffle_epi32(0xffff, a.v, _MM_PERM_BADC)}; }

}  // namespace msctx::avx512
