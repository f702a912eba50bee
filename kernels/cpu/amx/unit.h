// AMX: eight tiles of 16 rows of 64 bytes, and the products of two of them added to a third.
// Instructions are written out, since compilers know them by options of their own; MSCTX_EMULATED_TILES computes them in software.
#pragma once

#include <immintrin.h>

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

// sum[i][j] += the sum over k, and over the parts of a word, of a[i][k] * b[k][j]. `unpack` stores one part of each of 16 words.
template <class Value, int parts, class Unpack, class Add>
static inline void add_products(Tile& sum, const Tile& a, const Tile& b, const Unpack& unpack, const Add& add) {
  struct Row {
    Value part[parts][16];
  };
  const auto row = [&](const Tile& from, int at) {
    Row found;
    for (int p = 0; p < parts; p++) unpack(_mm512_load_si512(from.bytes + at * tile_bytes), p, found.part[p]);
    return found;
  };
  Row right[tile_rows];
  for (int k = 0; k < tile_rows; k++) right[k] = row(b, k);
  for (int i = 0; i < tile_rows; i++) {
    const Row left = row(a, i);
    Value total[16];
    std::memcpy(total, sum.bytes + i * tile_bytes, sizeof total);
    for (int k = 0; k < tile_rows; k++)
      for (int p = 0; p < parts; p++)
        for (int j = 0; j < 16; j++) total[j] = add(total[j], left.part[p][k], right[k].part[p][j]);
    std::memcpy(sum.bytes + i * tile_bytes, total, sizeof total);
  }
}
template <int sum, int a, int b>
static inline void add_product_int8() {
  const auto digit = [](__m512i words, int p, int32_t* to) {
    _mm512_storeu_si512(to, _mm512_srai_epi32(_mm512_slli_epi32(words, unsigned(24 - 8 * p)), 24));
  };
  const auto add = [](int32_t total, int32_t left, int32_t right) { return int32_t(uint32_t(total) + uint32_t(left * right)); };
  add_products<int32_t, 4>(tile(sum), tile(a), tile(b), digit, add);
}
static inline float fused(float total, float left, float right) { return __builtin_fmaf(left, right, total); }
template <int sum, int a, int b>
static inline void add_product_bf16() {
  const auto half = [](__m512i words, int p, float* to) {
    _mm512_storeu_si512(to, p ? _mm512_and_si512(words, _mm512_set1_epi32(int(0xffff0000))) : _mm512_slli_epi32(words, 16));
  };
  add_products<float, 2>(tile(sum), tile(a), tile(b), half, fused);
}
template <int sum, int a, int b>
static inline void add_product_fp16() {
  const auto half = [](__m512i words, int p, float* to) {
    _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(p ? _mm512_srli_epi32(words, 16) : words)));
  };
  add_products<float, 2>(tile(sum), tile(a), tile(b), half, fused);
}

#endif

}  // namespace msctx::MSCTX_ISA
