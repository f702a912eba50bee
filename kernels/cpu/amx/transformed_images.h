// What Winograd on AMX does with images: the source as operands, the products, the results. See transformed.h.
#pragma once

#include "msctx/bounds.h"
#include "transformed.h"

namespace msctx::MSCTX_ISA {
namespace {

// Tiles that are neighbours in a row of them, in one image.
struct Run {
  int64_t image, row, column, count;
  template <class S>
  Run(const Transformed<S>& l, int64_t tile, int64_t most)
      : image(tile / (l.down * l.across)), row(tile / l.across % l.down), column(tile % l.across),
        count(smaller(most, l.across - column)) {}
};

// What becomes of tiles, and the largest of their values at the points.
enum class State : uint8_t { wanted, done, too_wide, not_finite };
struct Outcome {
  State state;
  float largest;
  void join(const Outcome& other) {
    if (other.state > state) state = other.state;
    if (other.largest > largest) largest = other.largest;
  }
};

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
  Outcome fill(int64_t group, int64_t begin, int64_t end, double most, char* operands, Scale* scales) const {
    Outcome all = {State::done, 0.0f};
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
        all.join(put<any_exponent>(pixels, filters_.levels(group), most, to, scales[at]));
        if (all.state != State::done) return all;
      }
    }
    return all;
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
  Outcome put(const float* const* pixels, const float* levels, double most, char* to, Scale& inverse) const {
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
    if (!peak.is_finite()) return {State::not_finite, 0.0f};
    const float largest = peak.of_all();
    if (!any_exponent && Peak::crest(largest, double(_mm512_reduce_add_ps(peak.squares)), points * l_.depth) > most)
      return {State::too_wide, 0.0f};
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
    return {State::done, any_exponent ? 0.0f : largest};
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
  Sum<S, 4> sum({Transformed<S>::part_bytes, tile_size, tile_bytes, S::column_tiles * tile_size, tile_size});  // errors of many points add up
  sum.begin();
  for (int64_t depth = 0; depth < l.blocks; depth++, a += S::parts * Transformed<S>::part_bytes, b += Transformed<S>::step_bytes)
    sum.add_step(a, b);
  const typename S::Block& block = sum.end();
  for (int c = 0; c < S::column_tiles; c++)
    for (int r = 0; r < S::row_tiles; r++) {
      char* to = sums + c * column_step + r * row_step;
      for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + i * tile_bytes, S::row(block, r, c, i));
    }
}

template <class S>
class Results {
 public:
  Results(const Transformed<S>& l, const Filters<S>& filters, const ConvTensors& t)
      : l_(l), filters_(filters), result_(static_cast<float*>(l.op == Op::forward ? t.y : t.x)), tensors_(t) {}

  // Tile `tile` of all, 16 channels of the result: from its row of sums.
  void put(int64_t group, int64_t tile, int64_t column, const Scale& inverse, const char* sums) const {
    const int64_t there = smaller(16, l_.results - 16 * column);
    if (there <= 0) return;  // columns come in pairs
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
    const int64_t rows = smaller(4, l_.height - row), width = smaller(4, l_.width - left);
    const int64_t channels = l_.groups * l_.results, channel = group * l_.results + 16 * column, plane = l_.height * l_.width;
    const int64_t first_place = ((image * l_.height + row) * l_.width + left) * channels + channel;  // channels last
    Finish finish(tensors_, channel, int(there));
    const float* const other = finish.other() ? finish.other() + first_place : nullptr;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      apply_columns<Outputs>(half[i], out + 4 * i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        Vec& value = out[4 * i + j];
        value.v = _mm512_scalef_ps(_mm512_mul_ps(value.v, mantissa), exponent);
        if (i >= rows || j >= width || !finish.is_needed()) continue;
        finish.note(value, [&] { return (image * l_.height + row + i) * l_.width + left + j; });
        value = finish(value, other ? Vec::load(other + (i * l_.width + j) * channels, int(there)) : Vec::zero());
      }
    }
    if (tensors_.channels_last) {
      float* const to = result_ + first_place;
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
  const ConvTensors& tensors_;
};

static inline void winograd_reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(p.window[0] != 1 || p.window[1] != 3 || p.window[2] != 3, "it needs a window of 3x3");
  why.add_if(!has_unit(p.stride), "it needs stride 1; this layer has {stride}");
  why.add_if(!has_unit(p.dilation), "it needs dilation 1; this layer has {dilation}");
  why.add_if(op == Op::backward_weight, "it has no weight gradient");
}

template <class First>
using Wide = typename WideOf<First>::type;  // for values that are spread too far
// Values at the points are digits: fewer of these are left to lose, since sums at the points are larger than what the transform back leaves.
template <class First>
constexpr double most_spread_at_points = First::is_fixed_point ? 64 : First::most_spread;

template <class First>
size_t winograd_prepared_size(const ConvProblem& p, Op op, int form) {
  const Transformed<First> first(p, op);
  const Transformed<Wide<First>> wide(p, op);
  return form == 0 ? Filters(first, nullptr).size() : Filters(wide, nullptr).size();
}
template <class First>
void winograd_prepare(const ConvProblem& p, Op op, int form, const void* w, void* prepared, const Parallel& parallel) {
  const Transformed<First> first(p, op);
  const Transformed<Wide<First>> wide(p, op);
  if (form == 0)
    Filters(first, prepared).fill(static_cast<const float*>(w), parallel);
  else
    Filters(wide, prepared).fill(static_cast<const float*>(w), parallel);
}

// What is cut of the first kind of parts, see lost_of, of values at the points up to `first` and `second`: each of them costs a result as
// much as the transform back takes of it. Points round apart from each other, however alike the channels are: an eighth of what all
// could lose is more than was found by search.
template <class First>
Lost winograd_lost(int64_t depth, double first, double second) {
  double most = 0.0;  // a row of the transform back
  for (const auto& row : Outputs::matrix.at) {
    double sum = 0.0;
    for (const float each : row) sum += each < 0.0f ? -each : each;
    most = sum > most ? sum : most;
  }
  return {most * most / 16 * double(depth) * (First::dropped + 2 * First::cut) * first * second};
}

// Found by search, not proven: 6e-6, 2.2e-5 where each result's windows are spread over the channels in a way of their own, and 2.8e-5
// where all channels are alike.
static inline double winograd_error(const ConvProblem& p, Op op) { return or_gemm_error(2.9e-5, p, op); }

template <class First>
constexpr ConvAlgorithm winograd_by(
    const char* name, decltype(ConvAlgorithm::workspace) workspace, decltype(ConvAlgorithm::run) run) {
  return {
      .name = name,
      .math = "fp32-grade",
      .same_on_every_isa = false,
      .reasons = winograd_reasons,
      .workspace = workspace,
      .error = winograd_error,
      .run = run,
      .most_spread = 8,
      .reads_channels_last = true,
      .finishes = true,
      .prepared_size = winograd_prepared_size<First>,
      .prepare = winograd_prepare<First>,
      .prepared_for_all_sizes = true,
  };
}

}  // namespace
}  // namespace msctx::MSCTX_ISA
