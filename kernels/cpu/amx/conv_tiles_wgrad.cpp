// algo_1 on AMX, the weight gradient: sums over the positions of the result. Rows of a tile are channels of the gradient of
// y, 64 bytes of neighbouring positions each; columns are channels of x, whose positions lie in groups of 2 or 4: one copy for each place
// in a group where a tap begins. Some rows of an image, or some images, are split at a time (a chunk), and their products added to the
// gradient in float32, chunk after chunk; those of many chunks are added up apart, since each addition rounds.

#include "lowered.h"

namespace msctx::MSCTX_ISA {
namespace {

// A chunk is to stay in the second cache; but where there are many sums, to which each adds, it may as well be larger.
constexpr int64_t chunk_bytes = 1 << 20, largest_chunk = 8 << 20;
constexpr int64_t most_chunk = 256 << 20;  // of one row of results
constexpr int64_t chunks_together = 16;  // in one sum
constexpr int64_t lanes = 16;
constexpr int64_t most_together = 64;

// How the work is cut, and where things lie in a chunk.
template <class S>
struct Plan {
  static constexpr int64_t each = tile_bytes / S::depth;                              // bytes of a value
  static constexpr int64_t rows = lanes * S::row_tiles, columns = lanes * S::column_tiles;  // of a block of the result

  Lowered<S> l;
  int64_t y_blocks, x_blocks, taps;  // blocks of channels of y, and of x with the folded taps
  int64_t height, strips;            // result rows of a chunk; chunks of an image
  int64_t together;                  // images in a chunk
  int64_t copy[4] = {-1, -1, -1, -1}, copies = 0;  // which copy of x begins at a place in a group

  explicit Plan(const ConvProblem& p)
      : l(p, Op::forward), y_blocks(divide_up(l.results, rows)), x_blocks(divide_up(l.deep, columns)), taps(l.count_taps(0)) {
    const int64_t all = l.y.positions(0);
    height = all;
    for (bool is_found = false; !is_found; height = is_found ? height : divide_up(height, 2)) {
      find_copies();
      is_found = height == 1 || (size() <= most_bytes() && steps() * S::depth <= S::most_depth);
    }
    strips = divide_up(all, height);
    const int64_t fit = smaller(most_bytes() / size(), S::most_depth / (steps() * S::depth));
    together = strips > 1 ? 1 : larger(1, smaller(smaller(l.images, most_together), fit));
  }
  int64_t place(const TapAt& tap) const { return (tap.phase * (height + l.y.span()) + tap.row) * l.width + tap.column; }
  int64_t steps() const { return divide_up(height * l.width, S::depth); }
  int64_t chunks() const { return strips > 1 ? l.images * strips : divide_up(l.images, together); }
  int64_t chunk_depth() const { return together * height * l.x.result; }
  // By adding up chunks, in parts of the sum of the products' magnitudes.
  double rounded() const { return 0x1p-24 * double(smaller(chunks() - 1, chunks_together) + chunks() / chunks_together); }

  // Of one image: [block of y][part][row tile][16 rows][y_pitch], then [block of x][copy][column tile][part][groups][64 bytes].
  int64_t y_pitch() const { return steps() * tile_bytes; }
  int64_t y_part() const { return rows * y_pitch(); }
  int64_t y_size() const { return y_blocks * S::parts * y_part(); }
  int64_t values() const {
    return l.before + l.source_phases * (height + l.y.span()) * l.width + larger(0, l.x.high) + S::depth + S::together;
  }
  int64_t x_part() const { return divide_up(values(), S::together) * tile_bytes; }
  int64_t x_across() const { return S::parts * x_part(); }
  int64_t x_copy() const { return S::column_tiles * x_across(); }
  int64_t x_size() const { return x_blocks * copies * x_copy(); }
  int64_t size() const { return y_size() + x_size(); }

  int64_t stage_floats() const { return (divide_up(values(), S::together) + 1) * S::together * lanes; }
  // The gradient on the way: [tap][channel of y][channel of x].
  int64_t sum_row() const { return x_blocks * columns; }
  int64_t most_bytes() const { return larger(chunk_bytes, smaller(largest_chunk, 2 * int64_t(sizeof(float)) * sum_floats())); }
  int64_t sum_floats() const { return taps * y_blocks * rows * sum_row(); }

 private:
  void find_copies() {
    copies = 0;
    for (int64_t& number : copy) number = -1;
    l.for_taps(0, [&](const TapAt& tap) {
      int64_t& number = copy[place(tap) % S::together];
      if (number < 0) number = copies++;
    });
  }
};

// Where an image and a group begin, and the steps to its neighbours.
struct Source {
  const float* data;
  int64_t channel_step, column_step, row_step;
};

// Some result rows of one image.
template <class S>
class Segment {
 public:
  Segment() = default;
  Segment(const Plan<S>& plan, const ConvTensors& t, int64_t group, int64_t image, int64_t first, char* data)
      : plan_(&plan), first_(first), height_(smaller(plan.height, plan.l.y.positions(0) - first)), y_data_(data),
        x_data_(data + plan.y_size()), channels_last_(t.channels_last) {
    x_ = source(t.x, image, group, plan_->l.groups * plan_->l.depth, plan_->l.depth, plan_->l.y.source, plan_->l.x.source);
    y_ = source(t.y, image, group, plan_->l.groups * plan_->l.results, plan_->l.results, plan_->l.y.result, plan_->l.x.result);
  }
  const char* y_data(int64_t block) const { return y_data_ + block * S::parts * plan_->y_part(); }
  const char* x_data(int64_t block, int64_t copy) const { return x_data_ + (block * plan_->copies + copy) * plan_->x_copy(); }

  Spread spread_x() const {
    const int64_t tap = plan_->l.y.folded ? (plan_->l.y.taps - 1) * plan_->l.y.dilation : 0;
    const int64_t begin = larger(0, source_row(0, 0));
    const int64_t end = smaller(plan_->l.y.source, source_row(plan_->l.y.phases() - 1, height_ + plan_->l.y.span() - 1) + tap + 1);
    return spread(x_, begin, end, plan_->l.x.source, plan_->l.depth);
  }
  Spread spread_y() const { return spread(y_, first_, first_ + height_, plan_->l.x.result, plan_->l.results); }

  // 16 channels of y.
  void fill_y(int64_t tile, const Scale& scale) const {
    char* const base = y_data_ + tile / S::row_tiles * S::parts * plan_->y_part() + tile % S::row_tiles * lanes * plan_->y_pitch();
    for (int p = 0; p < S::parts; p++) std::memset(base + p * plan_->y_part(), 0, size_t(lanes * plan_->y_pitch()));
    const int64_t channel = tile * lanes, count = smaller(lanes, plan_->l.results - channel);
    if (count <= 0) return;
    for (int64_t i = 0; i < height_; i++)
      for (int64_t j = 0; j < plan_->l.x.result; j += lanes) {
        const float* from = y_.data + (first_ + i) * y_.row_step + j * y_.column_step + channel * y_.channel_step;
        const int64_t there = smaller(lanes, plan_->l.x.result - j);
        Floats v[lanes];
        if (channels_last_) {
          for (int64_t e = 0; e < lanes; e++)
            v[e] = e < there ? _mm512_maskz_loadu_ps(first(count), from + e * y_.column_step) : _mm512_setzero_ps();
          transpose(v);
        } else {
          for (int64_t e = 0; e < lanes; e++)
            v[e] = e < count ? _mm512_maskz_loadu_ps(first(there), from + e * y_.channel_step) : _mm512_setzero_ps();
        }
        char* to = base + (i * plan_->l.width + j) * plan_->each;
        for (int64_t c = 0; c < count; c++, to += plan_->y_pitch()) {
          char packed[S::parts][lanes * Plan<S>::each];
          S::split(scaled<S>(v[c], scale), packed[0], sizeof packed[0]);
          for (int p = 0; p < S::parts; p++) copy(to + p * plan_->y_part(), packed[p], there);
        }
      }
  }

  // 16 channels of x, every copy.
  void fill_x(int64_t tile, const Scale& scale, float* stage) const {
    const int64_t height = height_ + plan_->l.y.span(), all = plan_->stage_floats();
    std::memset(stage, 0, sizeof(float) * size_t(all));
    for (int64_t phase = 0; phase < plan_->l.source_phases; phase++)
      for (int64_t i = 0; i < height; i++) {
        // planes are as far apart as in a whole chunk: the taps' places are for that
        float* to = stage + (plan_->l.before + (phase * (plan_->height + plan_->l.y.span()) + i) * plan_->l.width) * lanes;
        stage_row(tile, source_row(phase / plan_->l.x.phases(), i), plan_->l.first_column(phase % plan_->l.x.phases()), scale, to);
      }
    for (int64_t place = 0; place < S::together; place++) {
      if (plan_->copy[place] < 0) continue;
      char* to = const_cast<char*>(x_data(tile / S::column_tiles, plan_->copy[place])) + tile % S::column_tiles * plan_->x_across();
      const float* from = stage + place * lanes;
      for (int64_t g = 0; g < plan_->x_part() / tile_bytes; g++, to += tile_bytes, from += S::together * lanes) {
        Floats v[S::together];
        for (int64_t e = 0; e < S::together; e++) v[e] = _mm512_loadu_ps(from + e * lanes);
        S::split_words(v, to, plan_->x_part());
      }
    }
  }

 private:
  Source source(const void* tensor, int64_t image, int64_t group, int64_t channels, int64_t each, int64_t height, int64_t width) const {
    const int64_t plane = height * width, channel_step = channels_last_ ? 1 : plane, column_step = channels_last_ ? channels : 1;
    return {static_cast<const float*>(tensor) + image * channels * plane + group * each * channel_step, channel_step, column_step,
            width * column_step};
  }
  Spread spread(const Source& from, int64_t begin, int64_t end, int64_t width, int64_t channels) const {
    if (end <= begin) return {};
    const float* values = from.data + begin * from.row_step;
    if (!channels_last_) return Spread::of(values, (end - begin) * width, channels, from.channel_step);
    if (from.column_step == channels) return Spread::of(values, (end - begin) * width * channels);
    return Spread::of(values, channels, (end - begin) * width, from.column_step);
  }
  int64_t source_row(int64_t phase, int64_t i) const { return plan_->l.y.source_step * (first_ + i) + plan_->l.first_row(phase); }

  static void copy(char* to, const char* from, int64_t count) {
    if (count == lanes)
      __builtin_memcpy(to, from, size_t(lanes * Plan<S>::each));
    else
      std::memcpy(to, from, size_t(count * Plan<S>::each));
  }

  // A row of a plane: [position][16 channels], scaled; what has no source is zero already.
  void stage_row(int64_t tile, int64_t row, int64_t begin, const Scale& scale, float* to) const {
    const int64_t step = plan_->l.x.source_step, channel = tile * lanes, count = smaller(lanes, plan_->l.deep - channel);
    if (count <= 0) return;
    if (channels_last_ && !plan_->l.x.folded) {
      if (row < 0 || row >= plan_->l.y.source) return;
      const float* from = x_.data + row * x_.row_step + channel;
      for (int64_t j = 0; j < plan_->l.width; j++) {
        const int64_t column = j * step + begin;
        if (column >= 0 && column < plan_->l.x.source)
          _mm512_storeu_ps(to + j * lanes, scaled<S>(_mm512_maskz_loadu_ps(first(count), from + column * x_.column_step), scale));
      }
      return;
    }
    for (int64_t j = 0; j < plan_->l.width; j += lanes) {
      Floats v[lanes];
      for (int64_t e = 0; e < lanes; e++) {
        v[e] = _mm512_setzero_ps();
        if (e >= count) continue;
        const auto [c, ky, kx] = plan_->l.x.folded ? plan_->l.place(channel + e) : typename Lowered<S>::Place{channel + e, 0, 0};
        const int64_t at = row + ky * plan_->l.y.dilation, start = begin + kx * plan_->l.x.dilation + j * step;
        if (at < 0 || at >= plan_->l.y.source) continue;
        const int64_t low = start < 0 ? divide_up(-start, step) : 0;
        const int64_t high = plan_->l.x.source > start ? divide_up(plan_->l.x.source - start, step) : 0;
        const __mmask16 there = __mmask16(first(smaller(high, plan_->l.width - j)) & ~first(low));
        const float* from = x_.data + c * x_.channel_step + at * x_.row_step + start * x_.column_step;
        v[e] = strided(from, step * x_.column_step, there);
      }
      transpose(v);
      for (int64_t e = 0; e < smaller(lanes, plan_->l.width - j); e++) _mm512_storeu_ps(to + (j + e) * lanes, scaled<S>(v[e], scale));
    }
  }

  const Plan<S>* plan_;
  int64_t first_, height_;
  char *y_data_, *x_data_;
  bool channels_last_;
  Source x_, y_;
};

// Adds the products of one block of channels of y and one of x, of all segments of a chunk, to their sums, which the first chunk begins.
template <class S>
void multiply(
    const Plan<S>& plan, const Segment<S>* segments, int64_t count, bool is_first, int64_t y_block, int64_t x_block,
    const Unscale<S>& unscale, float* sums) {
  Sum<S> sum({plan.y_part(), lanes * plan.y_pitch(), plan.y_pitch(), plan.x_part(), plan.x_across()});
  int64_t tap = 0;
  plan.l.for_taps(0, [&](const TapAt& at) {
    const int64_t place = plan.place(at), copy = plan.copy[place % S::together], shift = place / S::together * tile_bytes;
    sum.begin();
    for (int64_t i = 0; i < count; i++) {
      const char *a = segments[i].y_data(y_block), *b = segments[i].x_data(x_block, copy) + shift;
      for (int64_t step = 0; step < plan.steps(); step++, a += tile_bytes, b += tile_size) sum.add_step(a, b);
    }
    const typename S::Block& block = sum.end();
    for (int r = 0; r < S::row_tiles; r++)
      for (int c = 0; c < S::column_tiles; c++) {
        float* to = sums + ((tap * plan.y_blocks + y_block) * plan.rows + r * lanes) * plan.sum_row() + x_block * plan.columns + c * lanes;
        for (int i = 0; i < 16; i++, to += plan.sum_row()) {
          const Floats more = unscale(S::row(block, r, c, i));
          _mm512_storeu_ps(to, is_first ? more : _mm512_add_ps(_mm512_loadu_ps(to), more));
        }
      }
    tap++;
  });
}

// The gradients of the windows from the sums.
template <class S>
void store_weights(const Plan<S>& plan, int64_t group, const float* sums, float* w, const Parallel& parallel) {
  const Lowered<S>& l = plan.l;
  const int64_t window = l.most_taps();
  parallel_for(parallel, l.results, [&](int64_t k, int) {
    const int64_t own = k / l.gk;
    float* to = w + (group * l.results + k) * l.gc * window;
    const float* from = sums + k * plan.sum_row();
    l.for_taps(0, [&](const TapAt& at) {
      if (!l.x.folded)
        for (int64_t c = 0; c < l.gc; c++) to[c * window + at.index] = from[own * l.gc + c];
      else
        for (int64_t e = 0; e < l.deep; e++) {
          const auto [channel, ky, kx] = l.place(e);
          if (channel / l.gc == own) to[channel % l.gc * window + at.index + ky * l.x.taps + kx] = from[e];
        }
      from += plan.y_blocks * plan.rows * plan.sum_row();
    });
  });
}

template <class First_>
struct Both {
  using First = First_;
  using Wide = typename WideOf<First>::type;
  const Plan<First> first;
  const Plan<Wide> wide;
  explicit Both(const ConvProblem& p) : first(p), wide(p) {}
};

// The workspace: sums, those of many chunks, the chunk, a stage for each thread, spreads.
template <class S>
struct Layout {
  size_t sums, far, data, stage, spreads;
  explicit Layout(const Plan<S>& plan)
      : sums(align64(sizeof(float) * size_t(plan.sum_floats()))), far(plan.chunks() > chunks_together ? sums : 0),
        data(align64(size_t(plan.together * plan.size()))), stage(align64(sizeof(float) * size_t(plan.stage_floats()))),
        spreads(align64(2 * sizeof(Spread) * size_t(plan.together))) {}
  size_t size(int threads) const { return sums + far + data + stage * size_t(threads) + spreads; }
};

static void add_to(float* to, const float* from, int64_t count, const Parallel& parallel) {
  constexpr int64_t piece = 1 << 14;
  parallel_for(parallel, divide_up(count, piece), [&](int64_t task, int) {
    for (int64_t i = task * piece; i < smaller((task + 1) * piece, count); i++) to[i] += from[i];
  });
}

// One group. `too_wide`: nothing was computed, since values are spread too far. false: some are not finite.
template <class S>
bool run_group(
    const Plan<S>& plan, const ConvTensors& t, int64_t group, double most, double error, bool& too_wide, char* workspace,
    const Parallel& parallel) {
  Lost lost;
  const Layout<S> layout(plan);
  auto *sums = reinterpret_cast<float*>(workspace), *far = reinterpret_cast<float*>(workspace + layout.sums);
  char *data = workspace + layout.sums + layout.far, *stages = data + layout.data;
  auto* spreads = reinterpret_cast<Spread*>(stages + layout.stage * size_t(parallel.threads));

  for (int64_t number = 0; number < plan.chunks(); number++) {
    const int64_t image = plan.strips > 1 ? number / plan.strips : number * plan.together;
    const int64_t first_row = plan.strips > 1 ? number % plan.strips * plan.height : 0;
    const int64_t count = smaller(plan.together, plan.l.images - image);
    Segment<S> segments[most_together];
    for (int64_t i = 0; i < count; i++) segments[i] = Segment<S>(plan, t, group, image + i, first_row, data + i * plan.size());

    parallel_for(parallel, 2 * count, [&](int64_t i, int) {
      spreads[i] = i < count ? segments[i].spread_x() : segments[i - count].spread_y();
    });
    Spread x, y;
    for (int64_t i = 0; i < count; i++) x.join(spreads[i]), y.join(spreads[count + i]);
    if (!x.is_finite() || !y.is_finite()) return false;
    too_wide = x.crest() * y.crest() > most;
    if (too_wide) return true;
    const double others = lost.most;  // a result is the sum of all chunks
    const Lost more = lost_of<S>(double(plan.chunk_depth()), double(x.largest()), double(y.largest()), error);
    lost.join(more);
    lost.most = others + more.most;
    const Scale x_scale = x.template scale<S>(), y_scale = y.template scale<S>();
    const int64_t x_tiles = plan.x_blocks * S::column_tiles, y_tiles = plan.y_blocks * S::row_tiles;
    parallel_for(parallel, count * (x_tiles + y_tiles), [&](int64_t i, int slot) {
      const int64_t tile = i / count;
      if (tile < x_tiles)
        segments[i % count].fill_x(tile, x_scale, reinterpret_cast<float*>(stages + size_t(slot) * layout.stage));
      else
        segments[i % count].fill_y(tile - x_tiles, y_scale);
    });
    float mantissas[lanes], exponents[lanes];
    for (int64_t i = 0; i < lanes; i++) mantissas[i] = y_scale.mantissa, exponents[i] = y_scale.exponent;
    const Unscale<S> unscale(x_scale, mantissas, exponents);
    parallel_for(parallel, plan.x_blocks * plan.y_blocks, [&](int64_t i, int) {
      const TileUse tiles;
      multiply(plan, segments, count, number % chunks_together == 0, i % plan.y_blocks, i / plan.y_blocks, unscale, sums);
    });
    if (layout.far == 0 || ((number + 1) % chunks_together != 0 && number + 1 != plan.chunks())) continue;
    if (number < chunks_together) std::memcpy(far, sums, layout.far);
    else add_to(far, sums, plan.sum_floats(), parallel);
  }
  store_weights(plan, group, layout.far ? far : sums, static_cast<float*>(t.w), parallel);
  t.lost->join(lost);
  return true;
}

template <class First>
void reasons(const ConvProblem& p, Op op, Reasons& why) {
  lowered_reasons(p, why);
  why.add_if(op != Op::backward_weight, "it computes weight gradients only");
  if (why.count == 0 && !is_empty(p)) why.add_if(Plan<First>(p).size() > most_chunk, too_far);
}

template <class First>
size_t workspace(const ConvProblem& p, Op, int threads) {
  const Both<First> both(p);
  const size_t a = Layout(both.first).size(threads), b = Layout(both.wide).size(threads);
  return a > b ? a : b;
}

template <class First>
double error_of(const ConvProblem& p, Op op) {
  if (is_empty(p)) return or_gemm_error(0.0, p, op);
  const Both<First> both(p);
  const auto of = [](const auto& plan) {
    const double depth = double(plan.chunk_depth());
    return (First::is_graded ? graded_error_of(depth) : rounded_error_of(depth)) + plan.rounded();
  };
  const double first = of(both.first), wide = of(both.wide);
  return or_gemm_error(first > wide ? first : wide, p, op);
}

template <class First>
bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  const Both<First> both(p);
  char* const scratch = static_cast<char*>(workspace);
  const double error = error_of<First>(p, op);
  for (int64_t group = 0; group < both.first.l.groups; group++) {
    bool too_wide = false;
    if (!run_group(both.first, t, group, First::most_spread, error, too_wide, scratch, parallel)) return false;
    if (too_wide && !run_group(both.wide, t, group, no_limit, error, too_wide, scratch, parallel)) return false;
  }
  return true;
}

template <class First>
constexpr ConvAlgorithm by(const char* name) {
  return {
      .name = name,
      .math = First::is_graded ? "fp32-grade" : "tf32",
      .same_on_every_isa = false,
      .reasons = reasons<First>,
      .workspace = workspace<First>,
      .error = error_of<First>,
      .run = run<First>,
      .reads_channels_last = true,
  };
}

}  // namespace

extern const ConvAlgorithm conv_tiles_wgrad = by<Int8x6>("tiles_wgrad"), conv_tiles_wgrad_tf32 = by<Int8x3>("tiles_wgrad_tf32");
extern const ConvAlgorithm conv_fp16_wgrad = by<Float16x3>("tiles_wgrad"), conv_fp16_wgrad_tf32 = by<Float16x1>("tiles_wgrad_tf32");

}  // namespace msctx::MSCTX_ISA
