// The matrix unit (AMX): eight tiles of 16 rows of 64 bytes, and the products of two of them added to a third.
// Instructions are written out, since compilers know them by options of their own; MSCTX_EMULATED_TILES computes them in software.
#pragma once

#include "../isa/avx512/intrinsics.h"

#include <cstdint>
#include <cstring>

#include "msctx/conv.h"

namespace msctx::MSCTX_ISA {

constexpr int64_t tile_rows = 16, tile_bytes = 64, tile_size = tile_rows * tile_bytes;

#ifndef MSCTX_EMULATED_TILES

// Tiles are a thread's own, and whoever used them last configured them: a task configures them, and gives them back.
class TileUse {
 public:
  TileUse() {
    struct alignas(64) {
      uint8_t palette, start_row, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } config{};
    config.palette = 1;
    for (int i = 0; i < 8; i++) config.bytes[i] = tile_bytes, config.rows[i] = tile_rows;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  ~TileUse() { __asm__ volatile("tilerelease"); }
  TileUse(const TileUse&) = delete;
};

template <int t>
static inline void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(t));
}
// Rows of 64 bytes, `stride` bytes from one to the next.
template <int t>
static inline void tile_load(const void* from, int64_t stride = tile_bytes) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
}
template <int t>
static inline void tile_store(void* to, int64_t stride = tile_bytes) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(t) : "memory");
}

// VEX.128.pp.0F38.W0 opcode /r with the sum in reg, a in rm and b in vvvv.
#define MSCTX_TILE_PRODUCT(name, prefix, opcode)                                                                            \
  template <int sum, int a, int b>                                                                                          \
  static inline void name() {                                                                                               \
    __asm__ volatile(".byte 0xc4, 0xe2, %c0, " opcode ", %c1" ::"i"(prefix | ((~b & 15) << 3)), "i"(0xc0 | (sum << 3) | a)); \
  }
// sum[i][j] += the sum over k of a[i][k] * b[k][j]; b holds the 4 bytes (2 halves) of one j and neighbouring k side by side.
MSCTX_TILE_PRODUCT(add_product_int8, 0x03, "0x5e")
MSCTX_TILE_PRODUCT(add_product_bf16, 0x02, "0x5c")
MSCTX_TILE_PRODUCT(add_product_fp16, 0x03, "0x5c")
#undef MSCTX_TILE_PRODUCT

#else

struct Tile {
  alignas(64) uint8_t bytes[tile_size];
};
inline Tile& tile(int t) {  // not static: files that share the functions below share the tiles
  static thread_local Tile all[8];
  return all[t];
}
struct TileUse {
  ~TileUse() {}
};

template <int t>
static inline void tile_zero() {
  std::memset(tile(t).bytes, 0, tile_size);
}
template <int t>
static inline void tile_load(const void* from, int64_t stride = tile_bytes) {
  for (int i = 0; i < tile_rows; i++) std::memcpy(tile(t).bytes + i * tile_bytes, static_cast<const char*>(from) + i * stride, tile_bytes);
}
template <int t>
static inline void tile_store(void* to, int64_t stride = tile_bytes) {
  for (int i = 0; i < tile_rows; i++) std::memcpy(static_cast<char*>(to) + i * stride, tile(t).bytes + i * tile_bytes, tile_bytes);
}

static inline __m512i row_of(int t, int64_t i) { return _mm512_load_si512(tile(t).bytes + i * tile_bytes); }

// Adds to row i of the sum the result of `add(sum, word of a, row of b)`, for each word of a's row i.
template <class Add>
static inline void for_words(int sum, int a, int b, const Add& add) {
  for (int64_t i = 0; i < tile_rows; i++) {
    __m512i total = row_of(sum, i);
    for (int64_t k = 0; k < 16; k++) {
      int32_t word;
      std::memcpy(&word, tile(a).bytes + i * tile_bytes + 4 * k, sizeof word);
      total = add(total, _mm512_set1_epi32(word), row_of(b, k));
    }
    _mm512_store_si512(tile(sum).bytes + i * tile_bytes, total);
  }
}
template <int sum, int a, int b>
static inline void add_product_int8() {
  for_words(sum, a, b, [](__m512i total, __m512i left, __m512i right) {
    for (int shift = 0; shift < 32; shift += 8) {
      const auto digit = [&](__m512i v) { return _mm512_srai_epi32(_mm512_slli_epi32(v, unsigned(24 - shift)), 24); };
      total = _mm512_add_epi32(total, _mm512_mullo_epi32(digit(left), digit(right)));
    }
    return total;
  });
}
template <int sum, int a, int b>
static inline void add_product_bf16() {
  for_words(sum, a, b, [](__m512i total, __m512i left, __m512i right) {
    const auto low = [](__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); };
    const auto high = [](__m512i v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000)))); };
    const __m512 both = _mm512_fmadd_ps(low(left), low(right), _mm512_castsi512_ps(total));
    return _mm512_castps_si512(_mm512_fmadd_ps(high(left), high(right), both));
  });
}
template <int sum, int a, int b>
static inline void add_product_fp16() {
  for_words(sum, a, b, [](__m512i total, __m512i left, __m512i right) {
    const auto low = [](__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); };
    const auto high = [&](__m512i v) { return low(_mm512_srli_epi32(v, 16)); };
    const __m512 both = _mm512_fmadd_ps(low(left), low(right), _mm512_castsi512_ps(total));
    return _mm512_castps_si512(_mm512_fmadd_ps(high(left), high(right), both));
  });
}

#endif

}  // namespace msctx::MSCTX_ISA
