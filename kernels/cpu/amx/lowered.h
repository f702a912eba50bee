// A forward or backward-data product as sums over taps of shifted planes: the form in which AMX computes it.
//
// The source (x, or the gradient of y) is split and stored as planes of pixels: [block of depth][part][phase][row][column][64 bytes].
// The pixels under a tap are then the same plane from another pixel on: 16 neighbours are a tile, and nothing is unfolded. A plane's
// row ends with as many zeros as taps reach over either border: those left of a row are the ones right of the row before. Positions
// behind the end of a result's row give results that nobody stores.
// Where the source is strided (forward) it has a phase for each remainder; where the result is (backward data) that has phases, each
// with its own taps. Few channels: the taps of a row are folded into the depth; small groups are computed several at a time, with zeros
// between them.
#pragma once

#include "msctx/bounds.h"
#include "values.h"

namespace msctx::MSCTX_ISA {

static inline int64_t floor_divide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

struct Axis {
  int64_t source, result, taps, source_step, result_step, pad, dilation;
  bool forward;
  int64_t low = 0, high = 0;  // the offsets of all taps lie between
  bool folded = false;        // the taps are part of the depth: a plane's positions are the result's, and the source is not cut in phases

  Axis() = default;
  Axis(const ConvProblem& p, Op op, int i)
      : source(op == Op::forward ? p.in[i] : p.out[i]), result(op == Op::forward ? p.out[i] : p.in[i]), taps(p.window[i]),
        source_step(op == Op::forward ? p.stride[i] : 1), result_step(op == Op::forward ? 1 : p.stride[i]), pad(p.pad[i]),
        dilation(p.dilation[i]), forward(op == Op::forward) {
    bool any = false;
    for (int64_t r = 0; r < result_step && r < result; r++)
      for (int64_t k = 0; k < taps; k++) {
        int64_t phase, offset;
        if (!find(k, r, phase, offset)) continue;
        low = any ? smaller(low, offset) : offset;
        high = any ? larger(high, offset) : offset;
        any = true;
      }
  }
  // Tap k adds to result position r + result_step * t what lies at source position phase + source_step * (t + offset).
  bool find(int64_t k, int64_t r, int64_t& phase, int64_t& offset) const {
    const int64_t at = forward ? k * dilation - pad : r + pad - k * dilation, step = forward ? source_step : result_step;
    offset = floor_divide(at, step);
    phase = at - offset * step;
    if (forward) return true;
    const bool meets = phase == 0;
    phase = 0;
    return meets;
  }
  int64_t positions(int64_t r) const { return r < result ? (result - r - 1) / result_step + 1 : 0; }
  int64_t span() const { return folded ? 0 : high - low; }
  int64_t phases() const { return folded ? 1 : source_step; }
};

// Tap (y, x) of a phase of the result: where its pixels begin, from those of the result's position.
struct TapAt {
  int64_t index;         // y * window width + x
  int64_t phase;         // of the source
  int64_t row, column;   // not negative
};

constexpr int64_t most_phases = 64;  // of strided sources and results

// What the shapes alone decide, for parts S. Only of problems without reasons: see lowered_reasons.
template <class S>
struct Lowered {
  static constexpr int64_t most_folded = 512;
  static constexpr int64_t rows_together = 16 * S::row_tiles, columns_together = 16 * S::column_tiles;

  Op op;
  int64_t images, gc, gk;                   // of the problem
  int64_t merged, groups, depth, results;   // groups taken together; groups of these; channels of the source and the result in each
  int64_t deep, blocks, result_blocks;      // depth with what is folded; in blocks of S::depth; results in blocks of columns_together
  Axis y, x;
  int64_t source_phases, width, before;     // positions of a row of a plane; zeros before the first row
  int64_t taps_before[most_phases + 1];     // of the phases of the result, in their order

  Lowered(const ConvProblem& p, Op op_) : op(op_), images(p.n), gc(group_c(p)), gk(group_k(p)), y(p, op_, 1), x(p, op_, 2) {
    merged = 1;
    for (int64_t m = p.groups; m > 1; m--)
      if (p.groups % m == 0 && m * larger(gc, gk) <= 16) {
        merged = m;
        break;
      }
    groups = p.groups / merged;
    depth = merged * (op == Op::forward ? gc : gk);
    results = merged * (op == Op::forward ? gk : gc);
    x.folded = op == Op::forward && x.taps > 1 && x.taps * depth <= S::depth;
    y.folded = op == Op::forward && depth <= 4 && x.taps * y.taps > 1 && x.taps * y.taps * depth <= most_folded;
    x.folded |= y.folded;
    deep = depth * (x.folded ? x.taps : 1) * (y.folded ? y.taps : 1);
    blocks = divide_up(deep, S::depth);
    result_blocks = divide_up(results, columns_together);
    source_phases = y.phases() * x.phases();
    before = x.folded ? 0 : larger(0, -x.low);
    const int64_t stored = divide_up(x.source, x.source_step);
    width = x.folded ? x.positions(0) : larger(stored + before, x.positions(0) + larger(0, x.high));
    taps_before[0] = 0;
    for (int64_t phase = 0; phase < result_phases(); phase++) {
      taps_before[phase + 1] = taps_before[phase];
      for_taps(phase, [&](const TapAt&) { taps_before[phase + 1]++; });
    }
  }
  int64_t result_phases() const { return y.result_step * x.result_step; }

  // Calls body for each tap of a phase of the result, in the order of the weights.
  template <class Body>
  void for_taps(int64_t result_phase, const Body& body) const {
    const int64_t ry = result_phase / x.result_step, rx = result_phase % x.result_step;
    for (int64_t ky = 0; ky < (y.folded ? 1 : y.taps); ky++)
      for (int64_t kx = 0; kx < (x.folded ? 1 : x.taps); kx++) {
        TapAt tap{ky * x.taps + kx, 0, 0, 0};
        int64_t phase, offset;
        if (!y.folded) {
          if (!y.find(ky, ry, phase, offset)) continue;
          tap.phase = phase * x.phases();
          tap.row = offset - y.low;
        }
        if (!x.folded) {
          if (!x.find(kx, rx, phase, offset)) continue;
          tap.phase += phase;
          tap.column = offset + before;
        }
        body(tap);
      }
  }
  // The source position under position 0 of the planes of a phase, for the first of the folded taps.
  int64_t first_row(int64_t phase) const { return y.folded ? -y.pad : y.source_step * y.low + phase; }
  int64_t first_column(int64_t phase) const { return x.folded ? -x.pad : phase; }
  // Which of the folded taps, and which channel, a place along the depth is.
  struct Place {
    int64_t channel, ky, kx;
  };
  Place place(int64_t at) const {
    const int64_t tap = at / depth;
    return {at % depth, x.folded ? tap / x.taps : 0, x.folded ? tap % x.taps : 0};
  }
  int64_t count_taps(int64_t result_phase) const { return taps_before[result_phase + 1] - taps_before[result_phase]; }
  int64_t most_taps() const { return y.taps * x.taps; }

  // Bytes of the operand b of one phase, group and block of results: [block][tap][part][column tile][tile].
  static constexpr int64_t step_bytes = S::parts * S::column_tiles * tile_size;
  int64_t weight_bytes(int64_t result_phase) const { return blocks * count_taps(result_phase) * step_bytes; }
};

constexpr int64_t most_taps = 1024;
constexpr const char* too_far = "its planes would be mostly zeros: its strides, padding or dilated window reach too far";

static inline void lowered_reasons(const ConvProblem& p, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(p.groups > 1 && p.groups == p.c, "it adds over channels, and a depthwise convolution has one a group");
  why.add_if(volume(p.window) > most_taps, "it takes windows of up to 1024 taps");
  why.add_if(reaches_far(p) || volume(p.stride) > most_phases, too_far);
  why.add_if(larger(x_size(p), y_size(p)) / larger(1, p.n) >= int64_t(1) << 31, "it takes images of less than 2 billion values");
}
// A bound for any data, of sums of `depth` products. Up to 310 of 384, and the part that grows, is what sums of parts round (see Sum), and
// what is left is for what they cut (see lost_of); digits round less than 16 of it, and cut more.
static inline double graded_error_of(double depth) { return 0x1p-24 * (384 + depth / 4096); }
// 2^-10 of two factors; 1060 * 2^-24, and what grows, of runs of 1024 products; and what they cut.
static inline double rounded_error_of(double depth) { return 1.05e-3 + 0x1p-24 * depth / 4096; }

// What sums of `depth` products of parts S have lost to their being cut, whose factors are no larger than `first` and `second`; see Lost.
// Of each factor `cut` times the largest value, and of each product `dropped` times the product of those; no product with a zero loses.
// `room` of `error` is for this.
template <class S>
static inline Lost lost_of(double depth, double first, double second, double error) {
  const double unit = error / S::room, each = unit * S::dropped * first * second, cut = unit * S::cut;
  return {depth * (each + 2 * cut * first * second), each, cut * second, cut * first};
}

// Weights as operands: a head, the scale of each result's channel (mantissas, exponents), then [phase][group][block of results] of
// weight_bytes.
struct WeightHead {
  double crest, largest;
  bool is_finite;
};

template <class S>
class Weights {
 public:
  const Lowered<S>& l;
  char* data;

  Weights(const Lowered<S>& l, const void* data) : l(l), data(const_cast<char*>(static_cast<const char*>(data))) {}
  WeightHead& head() const { return *reinterpret_cast<WeightHead*>(data); }
  float* mantissas(int64_t group) const { return reinterpret_cast<float*>(data + 64) + group * padded(); }
  float* exponents(int64_t group) const { return mantissas(l.groups + group); }
  int64_t offset_of_tiles() const { return 64 + int64_t(align64(sizeof(float) * size_t(2 * l.groups * padded()))); }
  char* tiles(int64_t phase, int64_t group, int64_t block) const {
    return data + offset_of_phase(phase) + (group * l.result_blocks + block) * l.weight_bytes(phase);
  }
  size_t size() const {
    const size_t all = size_t(offset_of_phase(l.result_phases()));
    const size_t spreads = size_t(offset_of_tiles()) + sizeof(Spread) * size_t(channels());
    return all > spreads ? all : spreads;
  }

  void fill(const float* w, const Parallel& parallel) const {
    const int64_t row = l.gc * l.most_taps();
    Spread* const found = reinterpret_cast<Spread*>(data + offset_of_tiles());  // for now
    parallel_for(parallel, divide_up(channels(), 16), [&](int64_t task, int) {
      for (int64_t k = task * 16; k < smaller(task * 16 + 16, channels()); k++) found[k] = Spread::of(w + k * row, row);
    });
    // A scale for each channel of a forward result; the weights of one of backward_data are scattered: one scale for all.
    const bool each = l.op == Op::forward;
    Spread all;
    double crest = 1.0;
    for (int64_t k = 0; k < channels(); k++) {
      all.join(found[k]);
      if (found[k].is_finite() && found[k].crest() > crest) crest = found[k].crest();
    }
    head() = {each ? crest : all.crest(), all.largest(), all.is_finite()};
    if (!all.is_finite()) return;
    for (int64_t g = 0; g < l.groups; g++)
      for (int64_t i = 0; i < padded(); i++) {
        const Spread& own = each && i < l.results ? found[g * l.results + i] : all;
        const Scale scale = own.template scale<S>();
        mantissas(g)[i] = scale.mantissa;
        exponents(g)[i] = scale.exponent;
      }
    for (int64_t phase = 0; phase < l.result_phases(); phase++)
      parallel_for(parallel, l.groups * l.result_blocks, [&](int64_t task, int) {
        fill_block(w, phase, task / l.result_blocks, task % l.result_blocks);
      });
  }

 private:
  // Of the one after the last, too: where all ends.
  int64_t offset_of_phase(int64_t phase) const {
    return offset_of_tiles() + l.groups * l.result_blocks * l.blocks * l.taps_before[phase] * Lowered<S>::step_bytes;
  }
  int64_t padded() const { return l.result_blocks * l.columns_together; }
  int64_t channels() const { return l.groups * l.merged * l.gk; }

  // Where the weights of 16 results lie, and which of them there are, for a source channel of one of the merged groups.
  struct Lanes {
    int64_t own = -1;
    __m512i index;
    __mmask16 there;
    void find(const Lowered<S>& l, int64_t result, int64_t own_) {
      if (own == own_) return;
      own = own_;
      const bool forward = l.op == Op::forward;
      const int64_t each = forward ? l.gk : l.gc, step = l.most_taps() * (forward ? l.gc : 1);
      alignas(64) int32_t at[16] = {};
      there = 0;
      for (int64_t i = 0; i < 16; i++) {
        if (result + i >= l.results || (result + i) / each != own) continue;
        at[i] = int32_t((forward ? i : (result + i) % each) * step);
        there |= __mmask16(1u << i);
      }
      index = _mm512_load_si512(at);
    }
  };

  void fill_block(const float* w, int64_t phase, int64_t group, int64_t block) const {
    const bool forward = l.op == Op::forward;
    const int64_t window = l.most_taps(), row = l.gc * window, first_result = block * l.columns_together;
    const float* from = w + group * l.merged * l.gk * row + (forward ? first_result * row : 0);
    char* to = tiles(phase, group, block);
    Lanes lanes[S::column_tiles];
    for (int64_t b = 0; b < l.blocks; b++)
      l.for_taps(phase, [&](const TapAt& tap) {
        for (int64_t column = 0; column < S::column_tiles; column++) {
          const Floats mantissa = _mm512_loadu_ps(mantissas(group) + first_result + 16 * column);
          const Floats exponent = _mm512_loadu_ps(exponents(group) + first_result + 16 * column);
          for (int64_t r = 0; r < tile_rows; r++) {
            Floats v[4];
            for (int64_t i = 0; i < S::together; i++) {
              const int64_t at_depth = b * S::depth + r * S::together + i;
              v[i] = _mm512_setzero_ps();
              if (at_depth >= l.deep) continue;
              const auto [channel, ky, kx] = l.place(at_depth);
              const int64_t own = channel / (forward ? l.gc : l.gk);
              lanes[column].find(l, first_result + 16 * column, own);
              const int64_t at = tap.index + ky * l.x.taps + kx;
              const float* base = from + at + (forward ? 16 * column * row + channel % l.gc * window : channel * row);
              v[i] = scaled<S>(_mm512_mask_i32gather_ps(v[i], lanes[column].there, lanes[column].index, base, 4), mantissa, exponent);
            }
            S::split_words(v, to + column * tile_size + r * tile_bytes, S::column_tiles * tile_size);
          }
        }
        to += Lowered<S>::step_bytes;
      });
  }
};

}  // namespace msctx::MSCTX_ISA
