// The matrix unit (AMX): eight tiles of 16 rows of 64 bytes, and the products of two of them added to a third.
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

template <int sum, int a, int b>
static inline void add_product_int8() {
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < 64; k++) {
      const int left = int8_t(tile(a).bytes[i * 64 + k]);
      for (int j = 0; j < 16; j++)
        reinterpret_cast<int32_t*>(tile(sum).bytes)[i * 16 + j] += left * int8_t(tile(b).bytes[k / 4 * 64 + j * 4 + k % 4]);
    }
}
template <int sum, int a, int b, class Widen>
static inline void add_product_halves(Widen widen) {
  const auto* left = reinterpret_cast<const uint16_t*>(tile(a).bytes);
  const auto* right = reinterpret_cast<const uint16_t*>(tile(b).bytes);
  auto* to = reinterpret_cast<float*>(tile(sum).bytes);
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < 32; k++)
      for (int j = 0; j < 16; j++)
        to[i * 16 + j] = __builtin_fmaf(widen(left[i * 32 + k]), widen(right[k / 2 * 32 + j * 2 + k % 2]), to[i * 16 + j]);
}
template <int sum, int a, int b>
static inline void add_product_bf16() {
  add_product_halves<sum, a, b>([](uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  });
}
template <int sum, int a, int b>
static inline void add_product_fp16() {
  add_product_halves<sum, a, b>([](uint16_t half) { return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_set1_epi16(short(half)))); });
}

#endif

}  // namespace msctx::MSCTX_ISA
