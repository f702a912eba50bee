// Eight 64-bit words: AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace msctx::avx2 {

struct Words {
  __m256i a, b;
  static Words load(const void* p) {
    const auto* from = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  }
  static Words all(uint64_t x) { return {_mm256_set1_epi64x(int64_t(x)), _mm256_set1_epi64x(int64_t(x))}; }
  void store(void* p) const {
    auto* to = static_cast<__m256i*>(p);
    _mm256_storeu_si256(to, a);
    _mm256_storeu_si256(to + 1, b);
  }
};

static inline Words operator^(Words x, Words y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
static inline Words operator+(Words x, Words y) { return {_mm256_add_epi64(x.a, y.a), _mm256_add_epi64(x.b, y.b)}; }
// The product of the two halves of each word.
static inline Words halves_product(Words x) {
  return {_mm256_mul_epu32(x.a, _mm256_srli_epi64(x.a, 32)), _mm256_mul_epu32(x.b, _mm256_srli_epi64(x.b, 32))};
}
// Words 2i and 2i + 1 change places.
static inline Words swap_pairs(Words x) { return {_mm256_shuffle_epi32(x.a, 0x4e), _mm256_shuffle_epi32(x.b, 0x4e)}; }

}  // namespace msctx::avx2
