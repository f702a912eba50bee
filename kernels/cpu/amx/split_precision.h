// float32 values as sums of a few parts of 8 or 16 bits, whose products AMX adds up.
//
// Values are brought to one range by a power of two, then split: the first part is the nearest that the format holds, the next the
// nearest to what is left. Of the products of two sums of parts the smallest are left out.
//   Int8x6    three digits of 8 bits, fixed point: 24 bits below the largest value; exact sums of integers, one for each weight of
//             the digits. What is left out is up to 2^-24 of the product of the largest values: good while those are no more than
//             some 10 times the usual ones (Ozaki et al., "Error-free transformations of matrix multiplication", 2012, is the idea).
//   Int8x3    two digits: 16 bits below the largest value.
//   Bfloat16x9, x6, x3   three parts with 24 bits, two with 16 (Henry, Tang, Heinecke, arXiv 1904.06376): any exponents.
//   Float16x3, x1    two parts with 22 bits down to 2^-39 of the largest value; one with TF32's 11 bits.
#pragma once

#include <type_traits>
#include <utility>

#include "unit.h"

namespace msctx::MSCTX_ISA {

using Floats = __m512;

template <int... t>
static inline void tiles_zero(std::integer_sequence<int, t...>) {
  (tile_zero<t>(), ...);
}
template <class Sums, int... t>
static inline void tiles_store(Sums& to, std::integer_sequence<int, t...>) {
  (tile_store<t>(to[t]), ...);
}

// Bytes between the operands of a step: between the parts of a, its row tiles and the rows of a tile; between the parts of b and its
// column tiles.
struct Apart {
  int64_t a, down, stride, b, across;
};

// Parts S have
//   is_graded: they are no less exact than sums of float32; others round.
//   most_spread: how far a product's factors may be spread, as the product of their crests; beyond, WideOf is taken, since what is cut
//   would be too much of usual sums: see lost_of.

// Float sums of 2 x 2 tiles in tiles 0 to 3; operands in 4 and 5, 6 and 7.
struct FloatSums {
  static constexpr int row_tiles = 2, column_tiles = 2, depth = 32;
  static constexpr int64_t most_depth = int64_t(1) << 40;
  static constexpr bool rounds = true;
  static constexpr int row_exponent = 0;
  static constexpr bool is_fixed_point = false;
  static constexpr float largest = 0.0f;
  static constexpr double dropped = 0.0;              // see lost_of
  static constexpr double room = 74 * 0x1p-24;
  struct Block {
    alignas(64) float at[4][16 * 16];
  };
  static void zero() { tiles_zero(std::make_integer_sequence<int, 4>()); }
  static void store(Block& to) { tiles_store(to.at, std::make_integer_sequence<int, 4>()); }
  // Row i of the tile (row tile r, column tile c).
  static Floats row(const Block& from, int r, int c, int i) { return _mm512_load_ps(from.at[2 * r + c] + 16 * i); }
  static void load_a(const char* a, int64_t down, int64_t stride) {
    tile_load<4>(a, stride);
    tile_load<5>(a + down, stride);
  }
  static void load_b(const char* b, int64_t across) {
    tile_load<6>(b);
    tile_load<7>(b + across);
  }
};

struct Bfloat16 : FloatSums {
  static constexpr bool has_any_exponent = true;
  static constexpr double most_spread = __builtin_inf();
  static constexpr int top_exponent = 0;
  static constexpr double cut = 0x1p-90;  // what is below float32's exponents
  using Packed = __m256i;
  static Packed nearest(Floats& v) {  // and takes it away
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    v = _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16)));
    return _mm512_cvtepi32_epi16(rounded);
  }
  static void add_products() {
    add_product_bf16<0, 4, 6>();
    add_product_bf16<1, 4, 7>();
    add_product_bf16<2, 5, 6>();
    add_product_bf16<3, 5, 7>();
  }
};

struct Float16 : FloatSums {
  static constexpr bool has_any_exponent = false;
  static constexpr double most_spread = 32768;  // two halves hold a value to 2^-38 of the largest
  static constexpr int top_exponent = 14;
  static constexpr double cut = 0x1p-38;  // half the smallest, 2^-25, of a largest value that is 2^13 or more
  using Packed = __m256i;
  static Packed nearest(Floats& v) {
    const __m256i rounded = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    v = _mm512_sub_ps(v, _mm512_cvtph_ps(rounded));
    return rounded;
  }
  static void add_products() {
    add_product_fp16<0, 4, 6>();
    add_product_fp16<1, 4, 7>();
    add_product_fp16<2, 5, 6>();
    add_product_fp16<3, 5, 7>();
  }
};

// 16 columns of neighbouring k as words of a tile's row; `v` is spent part by part.
template <class Format>
static inline __m512i word_of(Floats v[]) {
  const __m512i low = _mm512_cvtepu16_epi32(Format::nearest(v[0])), high = _mm512_cvtepu16_epi32(Format::nearest(v[1]));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

template <class Format, int parts_, int products>
struct Halves : Format {
  static constexpr int parts = parts_, together = 2;  // values in a word
  static constexpr bool is_graded = products >= (Format::has_any_exponent ? 6 : 3);
  static constexpr int steps_of_a_run = products == 1 ? 32 : 8;
  static void split(Floats v, char* to, int64_t apart) {  // 16 neighbours along k
    for (int p = 0; p < parts; p++, to += apart) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), Format::nearest(v));
  }
  static void split_words(Floats v[], char* to, int64_t apart) {
    for (int p = 0; p < parts; p++, to += apart) _mm512_storeu_si512(to, word_of<Format>(v));
  }
  // The products of a step but that of the first parts.
  static void add_low(const char* a, const char* b, const Apart& at) {
    const auto left = [&](int p) { Format::load_a(a + p * at.a, at.down, at.stride); };
    const auto right = [&](int p) { Format::load_b(b + p * at.b, at.across); };
    const auto add = [] { Format::add_products(); };
    if constexpr (products == 1) return;
    left(0);
    if constexpr (products >= 6) right(2), add();
    right(1), add();
    if constexpr (products >= 6) left(1), add();
    if constexpr (products == 9) right(2), add(), left(2), add(), right(1), add();
    if constexpr (products == 3) left(1);
    right(0), add();
    if constexpr (products == 6) left(2), add();
    if constexpr (products == 9) left(1), add();
  }
  static void add_high(const char* a, const char* b, const Apart& at) {
    Format::load_a(a, at.down, at.stride);
    Format::load_b(b, at.across);
    Format::add_products();
  }
};
using Bfloat16x9 = Halves<Bfloat16, 3, 9>;
using Bfloat16x6 = Halves<Bfloat16, 3, 6>;
using Bfloat16x3 = Halves<Bfloat16, 2, 3>;
using Float16x3 = Halves<Float16, 2, 3>;
using Float16x1 = Halves<Float16, 1, 1>;

// Digits of 8 bits, the highest first. Sums of the products of equal weight, in tiles of int32; operands in tiles 6 and 7.
template <int parts_>
struct Digits {
  static constexpr int parts = parts_, together = 4, depth = 64;
  static constexpr int row_tiles = parts == 3 ? 2 : 3, column_tiles = 1;  // six tiles of sums
  static constexpr int64_t most_depth = (int64_t(1) << 31) / (parts * 128 * 128) - 1;  // what int32 holds, whatever the digits
  static constexpr bool rounds = false, is_graded = parts == 3;
  static constexpr double most_spread = parts == 3 ? 160 : 50;  // two digits have fewer bits to lose
  static constexpr int steps_of_a_run = 0;
  static constexpr int top_exponent = 0;
  static constexpr bool is_fixed_point = true;
  // The largest value with digits of at most 127.
  static constexpr float largest = parts == 3 ? 127 * 65536 + 127 * 256 + 127 : 127 * 256 + 127;
  // See lost_of. The products of digits of up to 128 that are left out, of weights 256, 256 and 1, or of 1; half a unit; and what is left
  // of the bound by a few roundings of the scales and of the sums' conversion.
  static constexpr double dropped = (parts == 3 ? 513 : 1) * 128.0 * 128.0 / largest / largest;
  static constexpr double cut = 0.5 / largest;
  static constexpr double room = parts == 3 ? 368 * 0x1p-24 : 1.049e-3;

  struct Block {
    alignas(64) int32_t at[6][16 * 16];
  };
  static void zero() { tiles_zero(std::make_integer_sequence<int, 6>()); }
  static void store(Block& to) { tiles_store(to.at, std::make_integer_sequence<int, 6>()); }
  static Floats row(const Block& from, int r, int, int i) {
    const auto sums = [&](int level) { return _mm512_cvtepi32_ps(_mm512_load_si512(from.at[level * row_tiles + r] + 16 * i)); };
    Floats total = sums(parts - 1);
    if constexpr (parts == 3) total = _mm512_fmadd_ps(sums(1), _mm512_set1_ps(256.0f), total);
    return _mm512_fmadd_ps(sums(0), _mm512_set1_ps(parts == 3 ? 65536.0f : 256.0f), total);
  }
  // Times this, row() is the sum of products of the integers: the products of lower weight are left out.
  static constexpr int row_exponent = 8 * (parts - 1);

  static void digits(Floats v, __m512i d[parts]) {
    __m512i whole = _mm512_cvtps_epi32(v);
    for (int p = parts - 1; p >= 0; p--) {
      d[p] = whole;  // its low byte
      whole = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    }
  }
  static void split(Floats v, char* to, int64_t apart) {
    __m512i d[parts];
    digits(v, d);
    for (int p = 0; p < parts; p++) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + p * apart), _mm512_cvtepi32_epi8(d[p]));
  }
  // With 128 added to each digit, they are the bytes of an integer: bytes of four values are brought together.
  static void split_words(Floats v[], char* to, int64_t apart) {
    const __m512i bias = _mm512_set1_epi32(parts == 3 ? 0x808080 : 0x8080);
    __m512i d[4];
    for (int i = 0; i < 4; i++) d[i] = _mm512_add_epi32(_mm512_cvtps_epi32(v[i]), bias);
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaa, high = 0xcccccccccccccccc;
    __m512i even_bytes[2], odd_bytes[2];  // of two neighbours, in turn
    for (int i = 0; i < 2; i++) {
      even_bytes[i] = _mm512_mask_blend_epi8(odd, d[2 * i], _mm512_slli_epi32(d[2 * i + 1], 8));
      odd_bytes[i] = _mm512_mask_blend_epi8(odd, _mm512_srli_epi32(d[2 * i], 8), d[2 * i + 1]);
    }
    const auto put = [&](int p, __m512i bytes) {
      _mm512_storeu_si512(to + p * apart, _mm512_xor_si512(bytes, _mm512_set1_epi32(int(0x80808080))));
    };
    if constexpr (parts == 3) put(0, _mm512_mask_blend_epi8(high, _mm512_srli_epi32(even_bytes[0], 16), even_bytes[1]));
    put(parts - 2, _mm512_mask_blend_epi8(high, odd_bytes[0], _mm512_slli_epi32(odd_bytes[1], 16)));
    put(parts - 1, _mm512_mask_blend_epi8(high, even_bytes[0], _mm512_slli_epi32(even_bytes[1], 16)));
  }
  static void step(const char* a, const char* b, const Apart& at) {
    tile_load<6>(b);
    add<0>(a, at), add<1>(a + at.a, at);
    if constexpr (parts == 3) add<2>(a + 2 * at.a, at);
    tile_load<6>(b + at.b);
    add<1>(a, at);
    if constexpr (parts == 3) {
      add<2>(a + at.a, at);
      tile_load<6>(b + 2 * at.b);
      add<2>(a, at);
    }
  }

 private:
  template <int level>
  static void add(const char* a, const Apart& at) {
    tile_load<7>(a, at.stride);
    add_product_int8<level * row_tiles, 7, 6>();
    tile_load<7>(a + at.down, at.stride);
    add_product_int8<level * row_tiles + 1, 7, 6>();
    if constexpr (row_tiles == 3) {
      tile_load<7>(a + 2 * at.down, at.stride);
      add_product_int8<level * row_tiles + 2, 7, 6>();
    }
  }
};
using Int8x6 = Digits<3>;
using Int8x3 = Digits<2>;

// The sum of a row of steps. Each product rounds, and values can be found whose roundings all go one way: the error of a plain sum is
// that of one product, times its depth. So sums of a few steps, a run, are added up apart, and those of many runs again; and within a run
// the products of low parts come first, while the sum is as small as they are. What is rounded of a sum of d products in runs of 8 steps
// is then no more, in parts of 2^-24 of the sum of their magnitudes, than
//   min(d, 256)   by the products of first parts in a run, each rounded to a sum that the magnitudes of all bound,
//   16            by the up to 2048 others there: those sums are 2^-7 of the magnitudes (bfloat16; of float16 2^-10),
//   26 + d/4096   by adding up runs: 15 to 16, then these, and both to the last; more where few channels leave most of a step empty,
//   8             and by what the parts themselves leave out: 2^-23 of each factor and 2^-22 of the product of float16's (bfloat16's: 1).
// Integers do not round.
template <class S, int steps_of_a_run = S::steps_of_a_run>
class Sum {
 public:
  explicit Sum(const Apart& apart) : apart_(apart) {}
  void begin() {
    S::zero();
    steps_ = runs_ = 0;
  }
  void add_step(const char* a, const char* b) {
    if constexpr (!S::rounds) return S::step(a, b, apart_);
    else {
      if (steps_ == steps_of_a_run) multiply(), end_run();
      a_[steps_] = a, b_[steps_] = b;
      steps_++;
    }
  }
  const typename S::Block& end() {
    if constexpr (S::rounds) multiply();
    S::store(tiles_);
    if constexpr (S::rounds) {
      if (runs_ % together != 0) add(tiles_, near_);
      if (runs_ >= together) add(tiles_, far_);
    }
    return tiles_;
  }

 private:
  static constexpr int64_t together = 16;  // runs

  void multiply() {
    for (int i = 0; i < steps_; i++) S::add_low(a_[i], b_[i], apart_);
    while (steps_ > 0) steps_--, S::add_high(a_[steps_], b_[steps_], apart_);  // the last first: they are in the cache
  }
  void end_run() {
    S::store(tiles_);
    S::zero();
    put(near_, tiles_, runs_++ % together == 0);
    if (runs_ % together == 0) put(far_, near_, runs_ == together);
  }
  static void put(typename S::Block& to, const typename S::Block& from, bool is_first) {
    if (is_first) to = from;
    else add(to, from);
  }
  static void add(typename S::Block& to, const typename S::Block& from) {
    for (int tile = 0; tile < 4; tile++)
      for (int i = 0; i < 256; i += 16)
        _mm512_store_ps(to.at[tile] + i, _mm512_add_ps(_mm512_load_ps(to.at[tile] + i), _mm512_load_ps(from.at[tile] + i)));
  }

  typename S::Block tiles_, near_, far_;
  const Apart apart_;
  const char *a_[steps_of_a_run + 1], *b_[steps_of_a_run + 1];  // of the steps of a run, not multiplied yet
  int64_t steps_ = 0, runs_ = 0;
};

// What takes the place of parts that cannot hold values that are spread far, with as good a product.
template <class S>
struct WideOf {
  using type = std::conditional_t<S::is_graded, Bfloat16x6, Bfloat16x3>;
};

}  // namespace msctx::MSCTX_ISA
