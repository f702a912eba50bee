// F(4x4, 3x3) of Winograd (see winograd.h and toom_cook.h) on AMX: tiles of the source and windows become values at 36
// points, each split into parts S; their products are summed over the channels there, and become 4 x 4 results.
//
// A row of an operand is a tile of the image, with a scale of its own; a column is a channel of the result, with another. One scale
// serves all points: the transforms' rows are made alike.
#pragma once

#include "msctx/toom_cook.h"
#include "values.h"

namespace msctx::MSCTX_ISA {
namespace {

// At the points of 1.5 values and windows are small: 1.5 and 8/3 times those, and a quarter in the way back.
struct Inputs {
  static constexpr auto matrix = [] {
    auto m = InputMatrix::matrix;
    for (int i = 3; i < 5; i++)
      for (float& each : m.at[i]) each *= 1.5f;
    return m;
  }();
};
struct Windows {
  static constexpr auto matrix = [] {
    auto m = FilterMatrix<3>::matrix;
    for (int i = 3; i < 5; i++)
      for (float& each : m.at[i]) each = float(each * 8.0 / 3.0);
    return m;
  }();
};
struct Outputs {
  static constexpr auto matrix = [] {
    auto m = OutputMatrix<4>::matrix;
    for (auto& row : m.at) row[3] *= 0.25f, row[4] *= 0.25f;
    return m;
  }();
};

// [M's columns]^2 values, row after row, at the points.
template <class M>
static inline __attribute__((always_inline)) void transform(const Vec* from, Vec* to) {
  constexpr int size = M::matrix.columns;
  Vec half[side][size];
#pragma GCC unroll 1
  for (int j = 0; j < size; j++) {
    Vec column[size], out[side];
#pragma GCC unroll 6
    for (int i = 0; i < size; i++) column[i] = from[i * size + j];
    apply_rows<M>(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < side; i++) half[i][j] = out[i];
  }
#pragma GCC unroll 1
  for (int i = 0; i < side; i++) apply_rows<M>(half[i], to + i * side);
}

// Of some values: their largest, and the largest in units of their root mean square. `most_spread_at_points` is for the product of two of these:
// errors are parts of the largest values, results are like the usual ones.
struct Peak {
  __m512i largest = _mm512_setzero_si512();  // bits of |value|: Inf and NaN are above all others
  Floats squares = _mm512_setzero_ps();

  void add(Floats v) {
    largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  bool is_finite() const { return _mm512_reduce_max_epu32(largest) < 0x7f800000; }
  float of_all() const {
    const uint32_t bits = _mm512_reduce_max_epu32(largest);
    float value;
    std::memcpy(&value, &bits, sizeof bits);
    return value;
  }
  // Of values whose squares are not float's, the crest is beyond all limits.
  static double crest(float largest, double squares, int64_t count) {
    if (largest == 0.0f) return 1.0;
    if (!(largest > 0x1p-60f && largest < 0x1p60f)) return 1e300;
    return __builtin_sqrt(double(largest) * double(largest) * double(count) / squares);
  }
};

// What the shapes alone decide.
template <class S>
struct Transformed {
  static constexpr int64_t tile = 4;
  static constexpr int64_t rows_together = 16 * S::row_tiles, columns_together = 16 * S::column_tiles;
  static constexpr int64_t part_bytes = S::row_tiles * tile_size;              // of some tiles' values at a point, in a block of depth
  static constexpr int64_t step_bytes = S::parts * S::column_tiles * tile_size;  // of the windows there
  static constexpr int64_t sums_apart = tile_size + 64;  // from point to point; odd in cache lines, as all that is read across points

  Op op;
  int64_t images, groups, depth, results;  // channels of the source and the result in a group
  int64_t blocks, columns;                 // of depth; of 16 results
  int64_t source_height, source_width, height, width, pad_y, pad_x;
  int64_t down, across;  // tiles
  int64_t gc, gk;

  Transformed(const ConvProblem& p, Op op_) : op(op_), images(p.n), groups(p.groups), gc(group_c(p)), gk(group_k(p)) {
    const bool forward = op == Op::forward;
    depth = forward ? gc : gk, results = forward ? gk : gc;
    blocks = divide_up(depth, S::depth), columns = divide_up(results, columns_together) * S::column_tiles;
    source_height = forward ? p.in[1] : p.out[1], source_width = forward ? p.in[2] : p.out[2];
    height = forward ? p.out[1] : p.in[1], width = forward ? p.out[2] : p.in[2];
    pad_y = forward ? p.pad[1] : 2 - p.pad[1], pad_x = forward ? p.pad[2] : 2 - p.pad[2];
    down = divide_up(height, tile), across = divide_up(width, tile);
  }
  int64_t tiles() const { return images * down * across; }
  bool takes() const { return depth <= S::most_depth; }

  // The operand a of rows_together tiles: [point][block of depth][part][part_bytes].
  int64_t source_apart() const { return blocks * S::parts * part_bytes + 64; }
  int64_t source_bytes() const { return points * source_apart(); }
  // The sums of 16 tiles and 16 results: [point][tile][result].
  static constexpr int64_t sums_bytes = points * sums_apart;
  // The operand b: [block of results][point][block of depth][part][column tile].
  int64_t windows_apart() const { return blocks * step_bytes; }
};

// A head, the scale of each result's channel (mantissas to be multiplied with the sums, exponents), the level of each channel of the
// source, then operands b of each group.
// Levels: a channel's windows are multiplied by a power of two that makes them as large as those of the others, and its source by what
// takes that away. So digits are where the products are large, and a channel of large values and small windows costs the others none.
template <class S>
class Filters {
 public:
  struct Head {
    double crest, largest;  // at the points, but for the levels
    bool is_finite;
  };

  Filters(const Transformed<S>& l, const void* data) : l_(l), data_(const_cast<char*>(static_cast<const char*>(data))) {}
  Head& head() const { return *reinterpret_cast<Head*>(data_); }
  float* mantissas(int64_t group) const { return reinterpret_cast<float*>(data_ + 64) + group * l_.columns * 16; }
  float* exponents(int64_t group) const { return mantissas(l_.groups + group); }
  float* levels(int64_t group) const { return mantissas(2 * l_.groups) + group * divide_up(l_.depth, 16) * 16; }
  const char* operand(int64_t group, int64_t block, int64_t point) const { return tiles(group, block) + point * l_.windows_apart(); }
  size_t size() const { return size_t(tiles(l_.groups, 0) - data_); }

  void fill(const float* w, const Parallel& parallel) const {
    const int64_t tasks = l_.groups * l_.columns, vectors = divide_up(l_.depth, 16);
    parallel_for(parallel, l_.groups * vectors, [&](int64_t task, int) { find_levels(w, task / vectors, task % vectors * 16); });
    for (int64_t group = 0; group < l_.groups; group++) join_levels(levels(group));
    // For now: crests and the bits of the largest, where the operands will be.
    auto* const found = reinterpret_cast<Found*>(tiles(0, 0));
    parallel_for(parallel, tasks, [&](int64_t task, int) { found[task] = measure(w, task / l_.columns, task % l_.columns); });
    head() = {0.0, 0.0, true};
    for (int64_t i = 0; i < tasks; i++) {
      head().crest = found[i].crest > head().crest ? found[i].crest : head().crest;
      head().largest = found[i].largest > head().largest ? found[i].largest : head().largest;
      head().is_finite &= found[i].is_finite;
    }
    if (!head().is_finite) return;
    parallel_for(parallel, tasks, [&](int64_t task, int) { put(w, task / l_.columns, task % l_.columns); });
  }

 private:
  struct Found {
    double crest, largest;
    bool is_finite;
  };
  char* tiles(int64_t group, int64_t block) const {
    char* const begin = reinterpret_cast<char*>(levels(l_.groups));
    return begin + (group * (l_.columns / S::column_tiles) + block) * points * l_.windows_apart();
  }

  // The exponents of the largest weights of 16 channels of the source, then what they are below the largest of all.
  static constexpr float none = -1000.0f, least_level = -100.0f;
  void find_levels(const float* w, int64_t group, int64_t channel) const {
    const bool forward = l_.op == Op::forward;
    const float* const own = w + group * l_.gk * l_.gc * 9;
    for (int64_t c = channel; c < channel + 16; c++) {
      uint32_t largest = 0;
      for (int64_t r = 0; r < (c < l_.depth ? l_.results : 0); r++) {
        const float* const window = own + (forward ? r * l_.gc + c : c * l_.gc + r) * 9;
        for (int tap = 0; tap < 9; tap++) {
          uint32_t bits;
          std::memcpy(&bits, window + tap, sizeof bits);
          bits &= 0x7fffffff;
          largest = bits > largest ? bits : largest;
        }
      }
      float value;
      std::memcpy(&value, &largest, sizeof value);
      int exponent = 0;
      if (largest > 0 && largest < 0x7f800000) __builtin_frexpf(value, &exponent);
      levels(group)[c] = largest > 0 ? float(exponent) : none;
    }
  }
  void join_levels(float* level) const {
    float top = none;
    for (int64_t c = 0; c < l_.depth; c++) top = level[c] > top ? level[c] : top;
    for (int64_t c = 0; c < l_.depth; c++) level[c] = level[c] - top > least_level ? level[c] - top : least_level;
  }

  // The windows of 16 results for a channel of the source: lanes are results.
  struct Lanes {
    __m512i index;
    __mmask16 there;
    const float *base, *levels;
    int64_t step;
    bool turned;
    Lanes(const Transformed<S>& l, const float* w, const float* levels, int64_t group, int64_t column) : levels(levels) {
      const bool forward = l.op == Op::forward;
      const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const int64_t next = forward ? l.gc * 9 : 9;
      index = _mm512_mullo_epi32(lane, _mm512_set1_epi32(int(next)));
      there = first(l.results - 16 * column);
      base = w + group * l.gk * l.gc * 9 + 16 * column * next;
      step = forward ? 9 : l.gc * 9;
      turned = !forward;
    }
    // Times 2^raised: what is denormal keeps its bits.
    static constexpr int raised = 40;
    void at_points(int64_t channel, Vec* values) const {
      Vec taps[9];
      const Floats up = _mm512_set1_ps(float(raised) - levels[channel]);
      for (int tap = 0; tap < 9; tap++) {
        const float* from = base + channel * step + (turned ? 8 - tap : tap);
        taps[tap].v = _mm512_scalef_ps(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, index, from, 4), up);
      }
      transform<Windows>(taps, values);
    }
  };

  Found measure(const float* w, int64_t group, int64_t column) const {
    const Lanes windows(l_, w, levels(group), group, column);
    Peak peak;
    for (int64_t channel = 0; channel < l_.depth; channel++) {
      Vec values[points];
      windows.at_points(channel, values);
      for (const Vec& each : values) peak.add(each.v);
    }
    alignas(64) float largest[16], squares[16];
    _mm512_store_si512(largest, peak.largest);
    _mm512_store_ps(squares, peak.squares);
    Found found = {0.0, 0.0, peak.is_finite()};
    if (!found.is_finite) return found;
    for (int i = 0; i < 16; i++) {
      const double raw = __builtin_ldexp(double(largest[i]), -Lanes::raised);
      found.largest = raw > found.largest ? raw : found.largest;
      const double crest = Peak::crest(largest[i], double(squares[i]), points * l_.depth);
      found.crest = crest > found.crest ? crest : found.crest;
      const Scale scale = scale_up_to<S>(double(largest[i]));
      mantissas(group)[16 * column + i] = scale.mantissa;
      exponents(group)[16 * column + i] = scale.exponent + Lanes::raised;
    }
    return found;
  }

  void put(const float* w, int64_t group, int64_t column) const {
    const Lanes windows(l_, w, levels(group), group, column);
    const Floats mantissa = _mm512_loadu_ps(mantissas(group) + 16 * column),
                 exponent = _mm512_sub_ps(_mm512_loadu_ps(exponents(group) + 16 * column), _mm512_set1_ps(float(Lanes::raised)));
    char* to = tiles(group, column / S::column_tiles) + column % S::column_tiles * tile_size;
    for (int64_t b = 0; b < l_.blocks; b++, to += Transformed<S>::step_bytes)
      for (int64_t r = 0; r < tile_rows; r++) {
        Vec values[S::together][points];
        for (int64_t e = 0; e < S::together; e++) {
          const int64_t channel = b * S::depth + 16 * e + r;  // the order in which put() of Sources has them
          if (channel < l_.depth)
            windows.at_points(channel, values[e]);
          else
            for (Vec& each : values[e]) each = Vec::zero();
        }
        for (int64_t point = 0; point < points; point++) {
          Floats v[S::together];
          for (int64_t e = 0; e < S::together; e++) v[e] = scaled<S>(values[e][point].v, mantissa, exponent);
          S::split_words(v, to + point * l_.windows_apart() + r * tile_bytes, S::column_tiles * tile_size);
        }
      }
    _mm512_storeu_ps(mantissas(group) + 16 * column, _mm512_div_ps(_mm512_set1_ps(1.0f), mantissa));
  }

  const Transformed<S>& l_;
  char* data_;
};

}  // namespace
}  // namespace msctx::MSCTX_ISA
