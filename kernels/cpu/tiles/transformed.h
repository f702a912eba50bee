// F(4x4, 3x3) of Winograd (see winograd.h and toom_cook.h) on the matrix unit: tiles of the source and windows become values at 36
// points, each split into parts S; their products are summed over the channels there, and become 4 x 4 results.
//
// A row of an operand is a tile of the image, with a scale of its own; a column is a channel of the result, with another. One scale
// serves all points: the transforms' rows are made alike.
#pragma once

#include "../isa/avx512/vec.h"
#include "choice.h"
#include "msctx/toom_cook.h"
#include "values.h"

namespace msctx::MSCTX_ISA {
namespace {

using avx512::Vec;

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

// Of some values: their largest, and the largest in units of their root mean square. `most_spread` is for the product of two of these:
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

// --- windows ---------------------------------------------------------------------------------------------------------------

// A head, the scale of each result's channel (mantissas to be multiplied with the sums, exponents), the level of each channel of the
// source, then operands b of each group.
// Levels: a channel's windows are multiplied by a power of two that makes them as large as those of the others, and its source by what
// takes that away. So digits are where the products are large, and a channel of large values and small windows costs the others none.
template <class S>
class Filters {
 public:
  struct Head {
    double crest;
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
    head() = {0.0, true};
    for (int64_t i = 0; i < tasks; i++) {
      head().crest = found[i].crest > head().crest ? found[i].crest : head().crest;
      head().is_finite &= found[i].is_finite;
    }
    if (!head().is_finite) return;
    parallel_for(parallel, tasks, [&](int64_t task, int) { put(w, task / l_.columns, task % l_.columns); });
  }

 private:
  struct Found {
    double crest;
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
    Found found = {0.0, peak.is_finite()};
    if (!found.is_finite) return found;
    for (int i = 0; i < 16; i++) {
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

// --- the source and the result -----------------------------------------------------------------------------------------------

// Tiles that are neighbours in a row of them, in one image.
struct Run {
  int64_t image, row, column, count;
  template <class S>
  Run(const Transformed<S>& l, int64_t tile, int64_t most)
      : image(tile / (l.down * l.across)), row(tile / l.across % l.down), column(tile % l.across),
        count(smaller(most, l.across - column)) {}
};

// What becomes of tiles.
enum class State : uint8_t { wanted, done, too_wide, not_finite };

template <class S>
class Sources {
 public:
  // `stage` holds stage_size() floats.
  Sources(const Transformed<S>& l, const Filters<S>& filters, const float* source, bool channels_last, float* stage)
      : l_(l), filters_(filters), source_(source), channels_last_(channels_last), stage_(stage) {}

  // A tile at the points, a pixel of zeros, and the pixels of a run, channels last.
  static size_t stage_size(const Transformed<S>& l) { return size_t(values_size(l) + (side * most_pixels(l) + 1) * pitch(l)); }
  // How many neighbours are transformed together: up to 64 columns of pixels that stay in the cache.
  static int64_t most_run(const Transformed<S>& l) {
    int64_t run = 15;
    while (run > 3 && (4 * run + 2) * side * pitch(l) * int64_t(sizeof(float)) > 256 << 10) run -= 4;
    return run;
  }

  // Tiles [begin, end) of all: their rows of operands from `operands` on, and what takes their scales away, one for each, to `scales`.
  template <bool any_exponent>
  State fill(int64_t group, int64_t begin, int64_t end, double most, char* operands, Scale* scales) const {
    float* const zeros = stage_ + values_size(l_);
    std::memset(zeros, 0, sizeof(float) * size_t(pitch(l_)));
    for (int64_t tile = begin; tile < end;) {
      const Run run(l_, tile, smaller(most_run(l_), end - tile));
      if (!channels_last_) stage(run, group, zeros + pitch(l_));
      for (int64_t i = 0; i < run.count; i++, tile++) {
        const float* pixels[points];
        find(run, i, group, zeros, pixels);
        const int64_t at = tile - begin;
        char* to = operands + at / Transformed<S>::rows_together * l_.source_bytes() + at % Transformed<S>::rows_together * tile_bytes;
        const State state = put<any_exponent>(pixels, filters_.levels(group), most, to, scales[at]);
        if (state != State::done) return state;
      }
    }
    return State::done;
  }

 private:
  static int64_t values_size(const Transformed<S>& l) { return l.blocks * S::together * points * Vec::width; }
  static int64_t pitch(const Transformed<S>& l) { return (divide_up(l.depth, 16) | 1) * 16; }
  static int64_t most_pixels(const Transformed<S>& l) { return divide_up(4 * most_run(l) + 2, 16) * 16; }
  int64_t channels() const { return l_.groups * l_.depth; }

  void stage(const Run& run, int64_t group, float* to) const {
    const int64_t plane = l_.source_height * l_.source_width, left = run.column * 4 - l_.pad_x, step = pitch(l_);
    const float* const image = source_ + (run.image * channels() + group * l_.depth) * plane;
    for (int64_t i = 0; i < side; i++, to += most_pixels(l_) * step) {
      const int64_t row = run.row * 4 - l_.pad_y + i;
      const bool inside = row >= 0 && row < l_.source_height;
      for (int64_t j = 0; j < 4 * run.count + 2; j += 16) {
        const __mmask16 there = inside ? __mmask16(first(l_.source_width - left - j) & ~first(-left - j)) : __mmask16(0);
        for (int64_t c = 0; c < l_.depth; c += 16) {
          Floats v[16];
          for (int64_t e = 0; e < 16; e++) {
            const float* from = image + (c + e) * plane + row * l_.source_width + left + j;
            v[e] = _mm512_maskz_loadu_ps(c + e < l_.depth ? there : __mmask16(0), from);
          }
          transpose(v);
          for (int64_t e = 0; e < 16; e++) _mm512_storeu_ps(to + (j + e) * step + c, v[e]);
        }
      }
    }
  }

  // Where the channels of the 36 pixels under a tile begin.
  void find(const Run& run, int64_t i, int64_t group, const float* zeros, const float** pixels) const {
    if (!channels_last_) {
      const float* staged = zeros + pitch(l_) + 4 * i * pitch(l_);
      for (int64_t y = 0; y < side; y++)
        for (int64_t x = 0; x < side; x++) pixels[y * side + x] = staged + (y * most_pixels(l_) + x) * pitch(l_);
      return;
    }
    const int64_t top = run.row * 4 - l_.pad_y, left = (run.column + i) * 4 - l_.pad_x;
    const float* const image = source_ + run.image * l_.source_height * l_.source_width * channels() + group * l_.depth;
    for (int64_t y = 0; y < side; y++)
      for (int64_t x = 0; x < side; x++) {
        const int64_t row = top + y, column = left + x;
        const bool inside = row >= 0 && row < l_.source_height && column >= 0 && column < l_.source_width;
        pixels[y * side + x] = inside ? image + (row * l_.source_width + column) * channels() : zeros;
      }
  }

  template <bool any_exponent>
  State put(const float* const* pixels, const float* levels, double most, char* to, Scale& inverse) const {
    const float lowered = any_exponent ? exponent_of(pixels) : 0.0f;
    Peak peak;
    float* values = stage_;
    for (int64_t c = 0; c < l_.blocks * S::depth; c += 16, values += points * Vec::width) {
      const __mmask16 there = first(l_.depth - c);
      Vec from[points], out[points];
      const Floats level = _mm512_sub_ps(_mm512_maskz_loadu_ps(there, levels + c), _mm512_set1_ps(lowered));
      for (int i = 0; i < points; i++) from[i].v = _mm512_scalef_ps(_mm512_maskz_loadu_ps(there, pixels[i] + c), level);
      transform<Inputs>(from, out);
      for (int i = 0; i < points; i++) {
        peak.add(out[i].v);
        out[i].store(values + i * Vec::width);
      }
    }
    if (!peak.is_finite()) return State::not_finite;
    const float largest = peak.of_all();
    if (!any_exponent && Peak::crest(largest, double(_mm512_reduce_add_ps(peak.squares)), points * l_.depth) > most) return State::too_wide;
    const Scale scale = scale_up_to<S>(double(largest));
    inverse = {1.0f / scale.mantissa, lowered - scale.exponent};
    const Floats factor = _mm512_set1_ps(__builtin_ldexpf(scale.mantissa, int(scale.exponent)));
    values = stage_;
    for (int64_t b = 0; b < l_.blocks; b++, values += S::together * points * Vec::width, to += S::parts * Transformed<S>::part_bytes)
      for (int64_t point = 0; point < points; point++) {
        Floats v[S::together];
        for (int64_t e = 0; e < S::together; e++) v[e] = _mm512_mul_ps(_mm512_loadu_ps(values + (e * points + point) * Vec::width), factor);
        S::split_words(v, to + point * l_.source_apart(), Transformed<S>::part_bytes);
      }
    return State::done;
  }
  // Of the largest of the pixels.
  float exponent_of(const float* const* pixels) const {
    Peak peak;
    for (int i = 0; i < points; i++)
      for (int64_t c = 0; c < l_.depth; c += 16) peak.add(_mm512_maskz_loadu_ps(first(l_.depth - c), pixels[i] + c));
    int exponent = 0;
    if (peak.is_finite()) __builtin_frexpf(peak.of_all(), &exponent);
    return float(exponent);
  }

  const Transformed<S>& l_;
  const Filters<S>& filters_;
  const float* source_;
  bool channels_last_;
  float* stage_;
};

// The sums at a point of rows_together tiles, for a block of results: sums + column tile * column_step + row tile * row_step.
template <class S>
static inline void multiply(
    const Transformed<S>& l, const char* a, const char* b, char* sums, int64_t row_step, int64_t column_step) {
  typename S::Block block;
  S::zero();
  for (int64_t depth = 0; depth < l.blocks; depth++, a += S::parts * Transformed<S>::part_bytes, b += Transformed<S>::step_bytes)
    S::step(a, Transformed<S>::part_bytes, tile_size, tile_bytes, b);
  S::store(block);
  for (int c = 0; c < S::column_tiles; c++)
    for (int r = 0; r < S::row_tiles; r++) {
      char* to = sums + c * column_step + r * row_step;
      for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + i * tile_bytes, S::row(block, r, c, i));
    }
}

template <class S>
class Results {
 public:
  Results(const Transformed<S>& l, const Filters<S>& filters, float* result, const float* bias, bool channels_last)
      : l_(l), filters_(filters), result_(result), bias_(bias), channels_last_(channels_last) {}

  // Tile `tile` of all, 16 channels of the result: from its row of sums.
  void put(int64_t group, int64_t tile, int64_t column, const Scale& inverse, const char* sums) const {
    const int64_t row = tile / l_.across % l_.down * 4, left = tile % l_.across * 4, image = tile / (l_.across * l_.down);
    Vec half[4][side], out[16];
#pragma GCC unroll 1
    for (int j = 0; j < side; j++) {
      Vec at_points[side], some[4];
#pragma GCC unroll 6
      for (int i = 0; i < side; i++)
        at_points[i] = Vec::load(reinterpret_cast<const float*>(sums + (i * side + j) * Transformed<S>::sums_apart));
      apply_columns<Outputs>(at_points, some);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) half[i][j] = some[i];
    }
    const Floats mantissa = _mm512_mul_ps(_mm512_loadu_ps(filters_.mantissas(group) + 16 * column), _mm512_set1_ps(inverse.mantissa));
    const Floats exponent = _mm512_sub_ps(
        _mm512_set1_ps(float(S::row_exponent) + inverse.exponent), _mm512_loadu_ps(filters_.exponents(group) + 16 * column));
    const int64_t rows = smaller(4, l_.height - row), width = smaller(4, l_.width - left), there = smaller(16, l_.results - 16 * column);
    const int64_t channels = l_.groups * l_.results, channel = group * l_.results + 16 * column, plane = l_.height * l_.width;
    const Bias bias(bias_, channel, there);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      apply_columns<Outputs>(half[i], out + 4 * i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++)
        out[4 * i + j].v = bias.added_to(_mm512_scalef_ps(_mm512_mul_ps(out[4 * i + j].v, mantissa), exponent));
    }
    if (channels_last_) {
      float* const to = result_ + ((image * l_.height + row) * l_.width + left) * channels + channel;
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) _mm512_mask_storeu_ps(to + (i * l_.width + j) * channels, first(there), out[4 * i + j].v);
      return;
    }
    Floats v[16];  // of channels: 4 x 4 results
    for (int i = 0; i < 16; i++) v[i] = out[i].v;
    transpose(v);
    float* to = result_ + (image * channels + channel) * plane + row * l_.width + left;
    const __mmask8 columns = __mmask8(first(width));
    for (int64_t c = 0; c < there; c++, to += plane) {
      alignas(64) float values[16];
      _mm512_store_ps(values, v[c]);
      for (int64_t i = 0; i < rows; i++) _mm_mask_storeu_ps(to + i * l_.width, columns, _mm_load_ps(values + 4 * i));
    }
  }

 private:
  const Transformed<S>& l_;
  const Filters<S>& filters_;
  float* result_;
  const float* bias_;
  bool channels_last_;
};

// --- what both algorithms say of themselves ------------------------------------------------------------------------------------

static inline void winograd_reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(p.window[0] != 1 || p.window[1] != 3 || p.window[2] != 3, "its window is 3x3");
  why.add_if(!has_unit(p.stride), "its stride is 1");
  why.add_if(!has_unit(p.dilation), "its dilation is 1");
  why.add_if(op == Op::backward_weight, "it has no weight gradient");
}

using Wide = typename WideOf<Graded>::type;  // for values that are spread too far

static inline size_t winograd_prepared_size(const ConvProblem& p, Op op, int form) {
  const Transformed<Graded> graded(p, op);
  const Transformed<Wide> wide(p, op);
  return form == 0 ? Filters(graded, nullptr).size() : Filters(wide, nullptr).size();
}
static inline void winograd_prepare(const ConvProblem& p, Op op, int form, const void* w, void* prepared, const Parallel& parallel) {
  const Transformed<Graded> graded(p, op);
  const Transformed<Wide> wide(p, op);
  if (form == 0)
    Filters(graded, prepared).fill(static_cast<const float*>(w), parallel);
  else
    Filters(wide, prepared).fill(static_cast<const float*>(w), parallel);
}

// Measured at 6e-6, and at 2.2e-5 where each result's windows are spread over the channels in a way of their own.
static inline double winograd_error(const ConvProblem&, Op) { return 2.9e-5; }

}  // namespace
}  // namespace msctx::MSCTX_ISA
