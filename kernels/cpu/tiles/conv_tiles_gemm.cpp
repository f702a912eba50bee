// implicit_gemm, implicit_precomp_gemm and algo_1 on the matrix unit, forward and backward data: strips of the result, each of which
// splits the source rows it needs into planes that stay in the cache, and multiplies them with the weights. See lowered.h.

#include "choice.h"
#include "planes.h"

namespace msctx::MSCTX_ISA {
namespace {

constexpr int64_t strip_bytes = 1 << 20, weights_together = 768 << 10;  // what shares the second cache
constexpr int64_t spread_piece = 1 << 16;
constexpr int64_t enough_tasks = 16;

// How the work is cut: strips of rows of the images, and parts of the results' channels where those are few. No sum is cut.
template <class S>
struct Cut {
  int64_t rows, strips, parts;
  explicit Cut(const Lowered<S>& l) {
    const int64_t all = l.y.positions(0);
    rows = all;
    while (rows > 1 && (int64_t(Planes<S>::size(l, rows)) > strip_bytes)) rows = divide_up(rows, 2);
    const int64_t jobs = l.images * l.groups;
    while (rows > 8 && jobs * divide_up(all, rows) < enough_tasks / 4) rows = divide_up(rows, 2);
    strips = divide_up(all, larger(1, rows));
    parts = smaller(l.result_blocks, divide_up(enough_tasks / 4, larger(1, jobs * strips)));
  }
};

template <class S>
class Product {
 public:
  Product(const Lowered<S>& l, const ConvTensors& t, const void* weights)
      : l_(l), cut_(l), weights_(l, weights), source_(static_cast<const float*>(l.op == Op::forward ? t.x : t.y)),
        result_(static_cast<float*>(l.op == Op::forward ? t.y : t.x)), channels_last_(t.channels_last) {}

  // All images whose `form` is the one given.
  void run(const int* exponents, const int8_t* forms, int form, char* slots, const Parallel& parallel) const {
    const int64_t each = cut_.strips * cut_.parts, slot_bytes = int64_t(align64(Planes<S>::size(l_, cut_.rows)));
    parallel_for(parallel, l_.images * l_.groups * each, [&](int64_t task, int slot) {
      const int64_t image = task / each / l_.groups, group = task / each % l_.groups;
      if (forms[image] != form) return;
      strip(image, group, task % each / cut_.parts, task % cut_.parts, exponents[image], slots + slot * slot_bytes);
    });
  }

 private:
  int64_t sources() const { return l_.groups * l_.depth; }
  int64_t results() const { return l_.groups * l_.results; }

  void strip(int64_t image, int64_t group, int64_t number, int64_t part, int exponent, char* slot) const {
    const int64_t first_row = number * cut_.rows, rows = smaller(cut_.rows, l_.y.positions(0) - first_row);
    const Planes<S> planes(l_, first_row, rows, slot);
    planes.fill(source_ + image * sources() * l_.y.source * l_.x.source, channels_last_, group, sources(), exponent);
    const TileUse tiles;
    const int64_t begin = part * l_.result_blocks / cut_.parts, end = (part + 1) * l_.result_blocks / cut_.parts;
    for (int64_t phase = 0; phase < l_.result_phases(); phase++) {
      const int64_t count = smaller(rows, l_.y.positions(phase / l_.x.result_step) - first_row);
      const int64_t together = larger(1, weights_together / larger(1, l_.weight_bytes(phase)));
      const Target target(*this, image, group, phase, first_row, count);
      for (int64_t b = begin; b < end; b += together)
        multiply(planes, phase, group, b, smaller(end, b + together), count * l_.width, exponent, target);
    }
  }

  // Where the results of a phase go: flat position i is row i / width, column i % width.
  struct Target {
    const Product& product;
    float* base;
    int64_t columns, row_step, column_step, channel_step;  // in floats
    Target(const Product& product, int64_t image, int64_t group, int64_t phase, int64_t first_row, int64_t)
        : product(product) {
      const Lowered<S>& l = product.l_;
      const int64_t ry = phase / l.x.result_step, rx = phase % l.x.result_step, each = product.channels_last_ ? product.results() : 1;
      columns = l.x.positions(rx);
      channel_step = product.channels_last_ ? 1 : l.y.result * l.x.result;
      row_step = l.y.result_step * l.x.result * each;
      column_step = l.x.result_step * each;
      base = product.result_ + image * product.results() * l.y.result * l.x.result + group * l.results * channel_step +
             ((ry + l.y.result_step * first_row) * l.x.result + rx) * each;
    }
  };

  void multiply(
      const Planes<S>& planes, int64_t phase, int64_t group, int64_t begin, int64_t end, int64_t pixels, int exponent,
      const Target& target) const {
    int64_t places[most_taps], taps = 0;
    l_.for_taps(phase, [&](const TapAt& tap) { places[taps++] = planes.place(tap); });
    const int64_t apart = planes.apart();
    typename S::Block block;
    for (int64_t pixel = 0; pixel < pixels; pixel += l_.rows_together)
      for (int64_t b = begin; b < end; b++) {
        const char* weights = weights_.tiles(phase, group, b);
        S::zero();
        for (int64_t depth = 0; depth < l_.blocks; depth++) {
          const char* from = planes.data() + depth * S::parts * apart + pixel * tile_bytes;
          for (int64_t i = 0; i < taps; i++, weights += Lowered<S>::step_bytes)
            S::step(from + places[i], apart, tile_size, tile_bytes, weights);
        }
        S::store(block);
        store(block, pixel, pixels, b, _mm512_set1_ps(float(S::row_exponent - exponent)), weights_.exponents(group), target);
      }
  }

  void store(
      const typename S::Block& block, int64_t pixel, int64_t pixels, int64_t result_block, Floats exponent, const float* exponents,
      const Target& to) const {
    for (int c = 0; c < S::column_tiles; c++) {
      const int64_t channel = result_block * l_.columns_together + 16 * c, channels = smaller(16, l_.results - channel);
      if (channels <= 0) break;
      const Floats scale = _mm512_sub_ps(exponent, _mm512_loadu_ps(exponents + channel));
      for (int r = 0; r < S::row_tiles; r++) {
        const int64_t start = pixel + 16 * r, count = smaller(16, pixels - start);
        if (count <= 0) break;
        if (channels_last_)
          store_last(block, r, c, start, count, first(channels), scale, to, to.base + channel);
        else
          store_first(block, r, c, start, count, channels, scale, to, to.base + channel * to.channel_step);
      }
    }
  }
  void store_last(
      const typename S::Block& block, int r, int c, int64_t start, int64_t count, __mmask16 channels, Floats scale, const Target& to,
      float* base) const {
    int64_t row = start / l_.width, column = start % l_.width;
    for (int64_t i = 0; i < count; i++) {
      if (column < to.columns)
        _mm512_mask_storeu_ps(base + row * to.row_step + column * to.column_step, channels, _mm512_scalef_ps(S::row(block, r, c, int(i)), scale));
      if (++column == l_.width) column = 0, row++;
    }
  }
  void store_first(
      const typename S::Block& block, int r, int c, int64_t start, int64_t count, int64_t channels, Floats scale, const Target& to,
      float* base) const {
    Floats v[16];
    for (int i = 0; i < 16; i++) v[i] = _mm512_scalef_ps(S::row(block, r, c, i), scale);
    transpose(v);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i steps = _mm512_mullo_epi32(lane, _mm512_set1_epi32(int(to.column_step)));
    for (int64_t i = 0; i < count;) {  // the pieces of rows
      const int64_t row = (start + i) / l_.width, column = (start + i) % l_.width, length = smaller(count - i, l_.width - column);
      const int64_t stored = smaller(length, to.columns - column);
      if (stored > 0) {
        const __mmask16 there = __mmask16(first(i + stored) & ~first(i));
        float* at = base + row * to.row_step + (column - i) * to.column_step;
        for (int64_t k = 0; k < channels; k++, at += to.channel_step)
          if (to.column_step == 1)
            _mm512_mask_storeu_ps(at, there, v[k]);
          else
            _mm512_mask_i32scatter_ps(at, there, steps, v[k], 4);
      }
      i += length;
    }
  }

  static constexpr int64_t most_taps = 1024;

 public:
  static bool takes(const Lowered<S>& l) { return l.most_taps() <= most_taps && l.deep * l.y.taps * (l.folded ? 1 : l.x.taps) <= S::most_depth; }

 private:
  const Lowered<S>& l_;
  Cut<S> cut_;
  Weights<S> weights_;
  const float* source_;
  float* result_;
  bool channels_last_;
};

bool is_empty(const ConvProblem& p) { return p.n == 0 || p.c == 0 || p.k == 0; }

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op == Op::backward_weight, "it has no weight gradient");
  why.add_if(volume(p.window) > 1024, "it takes windows of up to 1024 taps");
  why.add_if(larger(x_size(p), y_size(p)) / larger(1, p.n) >= int64_t(1) << 31, "it takes images of less than 2 billion values");
}

// What runs: parts of the first kind, and of the second for values that are spread too far.
template <class First>
struct Kind;
template <>
struct Kind<Graded> {
  using Wide = Bfloat16x6;
};
template <>
struct Kind<Rounded> {
  using Wide = Bfloat16x3;
};

int64_t pieces(const Lowered<Bfloat16x6>& l) {
  return divide_up(l.groups * l.depth * l.y.source * l.x.source, spread_piece);
}

template <class S>
size_t slot_size(const ConvProblem& p, Op op) {
  const Lowered<S> l(p, op);
  return align64(Planes<S>::size(l, Cut<S>(l).rows));
}
template <class First>
size_t workspace(const ConvProblem& p, Op op, int threads) {
  if (is_empty(p)) return 0;
  const size_t a = slot_size<First>(p, op), b = slot_size<typename Kind<First>::Wide>(p, op);
  const Lowered<Bfloat16x6> l(p, op);
  return size_t(threads) * (a > b ? a : b) + align64(sizeof(Spread) * size_t(p.n * pieces(l))) + align64(size_t(p.n) * 2 * sizeof(int)) +
         align64(size_t(p.n));
}

template <class First>
size_t prepared_size(const ConvProblem& p, Op op, int form) {
  if (is_empty(p)) return 0;
  if (form == 0) {
    const Lowered<First> l(p, op);
    return Weights<First>(l, nullptr).size();
  }
  const Lowered<typename Kind<First>::Wide> l(p, op);
  return Weights<typename Kind<First>::Wide>(l, nullptr).size();
}
template <class First>
void prepare(const ConvProblem& p, Op op, int form, const void* w, void* prepared, const Parallel& parallel) {
  if (form == 0) {
    const Lowered<First> l(p, op);
    Weights<First>(l, prepared).fill(static_cast<const float*>(w), parallel);
  } else {
    const Lowered<typename Kind<First>::Wide> l(p, op);
    Weights<typename Kind<First>::Wide>(l, prepared).fill(static_cast<const float*>(w), parallel);
  }
}

template <class First>
bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weights, void* workspace_, const Parallel& parallel) {
  using Wide = typename Kind<First>::Wide;
  if (p.n == 0 || (op == Op::forward ? p.k : p.c) == 0) return true;
  if ((op == Op::forward ? p.c : p.k) == 0) {
    std::memset(op == Op::forward ? t.y : t.x, 0, sizeof(float) * size_t(op == Op::forward ? y_size(p) : x_size(p)));
    return true;
  }
  const Lowered<First> l(p, op);
  const Lowered<Wide> wide(p, op);
  const int64_t image = l.groups * l.depth * l.y.source * l.x.source, each = divide_up(image, spread_piece);
  const auto* source = static_cast<const float*>(op == Op::forward ? t.x : t.y);

  char* at = static_cast<char*>(workspace_);
  auto* spreads = reinterpret_cast<Spread*>(at);
  at += align64(sizeof(Spread) * size_t(p.n * each));
  auto* exponents = reinterpret_cast<int*>(at);
  at += align64(size_t(p.n) * 2 * sizeof(int));
  auto* forms = reinterpret_cast<int8_t*>(at);
  at += align64(size_t(p.n));

  parallel_for(parallel, p.n * each, [&](int64_t task, int) {
    const int64_t first_value = task % each * spread_piece;
    spreads[task] = Spread::of(source + task / each * image + first_value, smaller(spread_piece, image - first_value));
  });
  const void* prepared = weights(0);
  const WeightHead& head = Weights<First>(l, prepared).head();
  if (!head.is_finite) return false;
  bool any[2] = {};
  for (int64_t n = 0; n < p.n; n++) {
    Spread all;
    for (int64_t i = 0; i < each; i++) all.join(spreads[n * each + i]);
    if (!all.is_finite()) return false;
    forms[n] = all.crest() * head.crest <= most_spread && Product<First>::takes(l) ? 0 : 1;
    exponents[n] = forms[n] ? all.template exponent<Wide>() : all.template exponent<First>();
    any[forms[n]] = true;
  }
  if (any[0]) Product<First>(l, t, prepared).run(exponents, forms, 0, at, parallel);
  if (any[1]) Product<Wide>(wide, t, weights(1)).run(exponents, forms, 1, at, parallel);
  return true;
}

double graded_error(const ConvProblem& p, Op op) {
  const double depth = double(op == Op::forward ? group_c(p) : group_k(p)) * double(volume(p.window));
  return 0x1p-24 * (16 + __builtin_sqrt(depth));
}
double rounded_error(const ConvProblem&, Op) { return 1.5e-3; }

}  // namespace

extern const ConvAlgorithm conv_tiles_gemm, conv_tiles_gemm_tf32;
const ConvAlgorithm conv_tiles_gemm = {
    .name = "tiles_gemm",
    .math = "fp32-grade",
    .fixed_order = true,
    .same_on_every_isa = false,
    .reasons = reasons,
    .workspace = workspace<Graded>,
    .error = graded_error,
    .run = run<Graded>,
    .reads_channels_last = true,
    .prepared_size = prepared_size<Graded>,
    .prepare = prepare<Graded>,
};
const ConvAlgorithm conv_tiles_gemm_tf32 = {
    .name = "tiles_gemm_tf32",
    .math = "tf32",
    .fixed_order = true,
    .same_on_every_isa = false,
    .reasons = reasons,
    .workspace = workspace<Rounded>,
    .error = rounded_error,
    .run = run<Rounded>,
    .reads_channels_last = true,
    .prepared_size = prepared_size<Rounded>,
    .prepare = prepare<Rounded>,
};

}  // namespace msctx::MSCTX_ISA
