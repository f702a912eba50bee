// implicit_gemm, implicit_precomp_gemm and algo_1 on AMX, forward and backward data: strips of the result, each of which
// splits the source rows it needs into planes that stay in the cache, and multiplies them with the weights. See lowered.h.

#include "planes.h"

#include <type_traits>

namespace msctx::MSCTX_ISA {
namespace {

constexpr int64_t strip_bytes = 640 << 10, weights_together = 768 << 10;  // what shares the second cache
constexpr size_t most_planes = 64 << 20;  // of one row of results
constexpr int64_t enough_tasks = 4;

// How the work is cut: strips of rows of an image, each with a scale of its own, and so by the image alone; and parts of the results'
// channels where that gives few tasks. No sum is cut.
struct Cut {
  int64_t rows, strips, parts;
  template <class S>
  explicit Cut(const Lowered<S>& l) {
    const int64_t all = l.y.positions(0);
    rows = all > 28 ? divide_up(all, 4) : all;
    while (rows > 1 && int64_t(Planes<S>::size(l, rows)) > strip_bytes) rows = divide_up(rows, 2);
    strips = divide_up(all, rows);
    parts = divide_up(enough_tasks, l.images * l.groups * strips);
  }
};

// What becomes of a strip, and how large its values are.
enum class State : uint8_t { wanted, done, too_wide, not_finite };
struct Strip {
  State state;
  float largest;
};

template <class S>
class Product {
 public:
  Product(const Lowered<S>& l, const Cut& cut, const ConvTensors& t, const void* weights)
      : l_(l), rows_(cut.rows), strips_(cut.strips), parts_(smaller(cut.parts, l.result_blocks)), weights_(l, weights),
        source_(static_cast<const float*>(l.op == Op::forward ? t.x : t.y)),
        result_(static_cast<float*>(l.op == Op::forward ? t.y : t.x)), tensors_(t), channels_last_(t.channels_last) {}

  static bool takes(const Lowered<S>& l) { return l.deep * l.count_taps(0) <= S::most_depth; }

  // Computes the strips whose `states` are `wanted`, unless the crests of the factors are together above `most`.
  // The largest value that was done goes into `largest`.
  void run(
      State wanted, double most, Strip* strips, char* slots, size_t slot_bytes, const Parallel& parallel, double& largest) const {
    parallel_for(parallel, tasks(), [&](int64_t task, int slot) {
      if (strips[task].state == wanted) strips[task] = strip(task, most, slots + size_t(slot) * slot_bytes);
    });
    largest = 0.0;
    for (int64_t i = 0; i < tasks(); i++)
      if (strips[i].state == State::done && strips[i].largest > largest) largest = strips[i].largest;
  }
  int64_t tasks() const { return l_.images * l_.groups * strips_ * parts_; }

 private:
  int64_t sources() const { return l_.groups * l_.depth; }
  int64_t results() const { return l_.groups * l_.results; }

  Strip strip(int64_t task, double most, char* slot) const {
    const int64_t part = task % parts_, number = task / parts_ % strips_, job = task / parts_ / strips_;
    const int64_t image = job / l_.groups, group = job % l_.groups;
    const int64_t first_row = number * rows_, rows = smaller(rows_, l_.y.positions(0) - first_row);
    const float* source = source_ + image * sources() * l_.y.source * l_.x.source;
    const Planes<S> planes(l_, group, first_row, rows, source, channels_last_, sources(), slot);
    const Spread spread = planes.spread();
    if (!spread.is_finite()) return {State::not_finite, 0.0f};
    if (spread.crest() * weights_.head().crest > most) return {State::too_wide, 0.0f};
    const Scale scale = spread.template scale<S>();
    planes.fill(scale);
    const TileUse tiles;
    const int64_t begin = part * l_.result_blocks / parts_, end = (part + 1) * l_.result_blocks / parts_;
    for (int64_t phase = 0; phase < l_.result_phases(); phase++) {
      const int64_t count = smaller(rows, l_.y.positions(phase / l_.x.result_step) - first_row);
      const int64_t together = larger(1, weights_together / larger(1, l_.weight_bytes(phase)));
      const Target target(*this, image, group, phase, first_row);
      for (int64_t b = begin; b < end; b += together)
        multiply(planes, phase, group, b, smaller(end, b + together), count * l_.width, scale, target);
    }
    return {State::done, spread.largest()};
  }

  // Where the results of a phase go: flat position i is row i / width, column i % width.
  struct Target {
    float* base;
    int64_t columns, row_step, column_step, channel_step;  // in floats
    Target(const Product& product, int64_t image, int64_t group, int64_t phase, int64_t first_row) {
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
      const Planes<S>& planes, int64_t phase, int64_t group, int64_t begin, int64_t end, int64_t pixels, const Scale& scale,
      const Target& target) const {
    int64_t places[most_taps], taps = 0;
    l_.for_taps(phase, [&](const TapAt& tap) { places[taps++] = planes.place(tap); });
    const int64_t apart = planes.apart();
    const char* const first_weights = weights_.tiles(phase, group, begin);
    Sum<S> sum({apart, tile_size, tile_bytes, S::column_tiles * tile_size, tile_size});
    for (int64_t pixel = 0; pixel < pixels; pixel += l_.rows_together)
      for (int64_t b = begin; b < end; b++) {
        const char* weights = first_weights + (b - begin) * l_.weight_bytes(phase);
        sum.begin();
        for (int64_t depth = 0; depth < l_.blocks; depth++) {
          const char* from = planes.data() + depth * S::parts * apart + pixel * tile_bytes;
          for (int64_t i = 0; i < taps; i++, weights += Lowered<S>::step_bytes) sum.add_step(from + places[i], weights);
        }
        store(sum.end(), pixel, pixels, b, scale, group, target);
      }
  }

  void store(
      const typename S::Block& block, int64_t pixel, int64_t pixels, int64_t result_block, const Scale& scale, int64_t group,
      const Target& to) const {
    for (int c = 0; c < S::column_tiles; c++) {
      const int64_t channel = result_block * l_.columns_together + 16 * c, channels = smaller(16, l_.results - channel);
      if (channels <= 0) break;
      const Unscale<S> unscale(scale, weights_.mantissas(group) + channel, weights_.exponents(group) + channel);
      Finish finish(tensors_, group * l_.results + channel, int(channels));
      for (int r = 0; r < S::row_tiles; r++) {
        const int64_t start = pixel + 16 * r, count = smaller(16, pixels - start);
        if (count <= 0) break;
        const auto row = [&](int i) { return unscale(S::row(block, r, c, i)); };
        if (channels_last_)
          store_last(row, finish, start, count, first(channels), to, to.base + channel);
        else
          store_first(row, finish, start, count, channels, to, to.base + channel * to.channel_step);
      }
    }
  }
  template <class Row>
  void store_last(
      const Row& values, Finish& finish, int64_t start, int64_t count, __mmask16 channels, const Target& to, float* base) const {
    int64_t row = start / l_.width, column = start % l_.width;
    for (int64_t i = 0; i < count; i++) {
      if (column < to.columns) {
        float* const at = base + row * to.row_step + column * to.column_step;
        const float* const other = finish.other() ? finish.other() + (at - result_) : nullptr;
        Vec value{values(int(i))};
        finish.note(value, [&] { return (at - result_) / results(); });
        value = finish(value, other ? Vec{_mm512_maskz_loadu_ps(channels, other)} : Vec::zero());
        _mm512_mask_storeu_ps(at, channels, value.v);
      }
      if (++column == l_.width) column = 0, row++;
    }
  }
  template <class Row>
  void store_first(
      const Row& values, Finish& finish, int64_t start, int64_t count, int64_t channels, const Target& to, float* base) const {
    Floats v[16];
    for (int64_t i = 0, column = start % l_.width; i < 16; i++, column = column + 1 == l_.width ? 0 : column + 1) {
      Vec value{values(int(i))};
      if (i < count && column < to.columns) {
        finish.note(value, [&] {
          const int64_t at = base - result_ + (start + i) / l_.width * to.row_step + column * to.column_step, positions = l_.y.result * l_.x.result;
          return at / (results() * positions) * positions + at % positions;
        });
        value = finish(value, Vec::zero());
      }
      v[i] = value.v;
    }
    transpose(v);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i steps = _mm512_mullo_epi32(lane, _mm512_set1_epi32(int(to.column_step)));
    int64_t row = start / l_.width, column = start % l_.width;
    for (int64_t i = 0; i < count; row++, column = 0) {  // the pieces of rows
      const int64_t length = smaller(count - i, l_.width - column), stored = smaller(length, to.columns - column);
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

  const Lowered<S>& l_;
  int64_t rows_, strips_, parts_;
  Weights<S> weights_;
  const float* source_;
  float* result_;
  const ConvTensors& tensors_;
  bool channels_last_;
};

template <class First>
void reasons(const ConvProblem& p, Op op, Reasons& why) {
  lowered_reasons(p, why);
  why.add_if(op == Op::backward_weight, "it has no weight gradient");
  if (why.count == 0 && !is_empty(p)) why.add_if(Planes<First>::size(Lowered<First>(p, op), 1) > most_planes, too_far);
}

// Parts of the first kind, and those for values that are spread too far.
template <class First_>
struct Both {
  using First = First_;
  using Wide = typename WideOf<First>::type;
  const Lowered<First> first;
  const Lowered<Wide> wide;
  const Cut cut;
  Both(const ConvProblem& p, Op op) : first(p, op), wide(p, op), cut(first) {}

  size_t slot_bytes() const {
    const size_t a = Planes<First>::size(first, cut.rows), b = Planes<Wide>::size(wide, cut.rows);
    return align64(a > b ? a : b);
  }
  size_t states() const { return size_t(first.images * first.groups * cut.strips * cut.parts); }
};

template <class First>
size_t workspace(const ConvProblem& p, Op op, int threads) {
  const Both<First> both(p, op);
  return size_t(threads) * both.slot_bytes() + align64(both.states() * sizeof(Strip));
}

template <class First>
size_t prepared_size(const ConvProblem& p, Op op, int form) {
  const Both<First> both(p, op);
  return form == 0 ? Weights(both.first, nullptr).size() : Weights(both.wide, nullptr).size();
}
template <class First>
void prepare(const ConvProblem& p, Op op, int form, const void* w, void* prepared, const Parallel& parallel) {
  const Both<First> both(p, op);
  if (form == 0)
    Weights(both.first, prepared).fill(static_cast<const float*>(w), parallel);
  else
    Weights(both.wide, prepared).fill(static_cast<const float*>(w), parallel);
}

double depth_of(const ConvProblem& p, Op op) { return double(op == Op::forward ? group_c(p) : group_k(p)) * double(volume(p.window)); }
template <class First>
double error_of(const ConvProblem& p, Op op) {
  const double depth = depth_of(p, op);
  const double parts = std::is_same_v<First, Bfloat16x3> ? 0x1p-15 : 0.0;  // 2^-17 of each factor, 2^-16 of the product
  return or_gemm_error((First::is_graded || parts > 0.0 ? graded_error_of(depth) : rounded_error_of(depth)) + parts, p, op);
}

template <class First>
bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weights, void* workspace, const Parallel& parallel) {
  const Both<First> both(p, op);
  char* const slots = static_cast<char*>(workspace);
  auto* const strips = reinterpret_cast<Strip*>(slots + size_t(parallel.threads) * both.slot_bytes());
  const auto any = [&](State wanted, int64_t tasks) {
    for (int64_t i = 0; i < tasks; i++)
      if (strips[i].state == wanted) return true;
    return false;
  };
  const void* prepared = weights(0);
  const WeightHead& head = Weights(both.first, prepared).head();
  if (!head.is_finite) return false;
  const double depth = depth_of(p, op), error = error_of<First>(p, op);
  const Product<First> product(both.first, both.cut, t, prepared);
  const bool takes = product.takes(both.first);
  double largest;
  for (int64_t i = 0; i < product.tasks(); i++) strips[i] = {takes ? State::wanted : State::too_wide, 0.0f};
  product.run(State::wanted, First::most_spread, strips, slots, both.slot_bytes(), parallel, largest);
  *t.lost = lost_of<First>(depth, largest, head.largest, error);
  if (any(State::not_finite, product.tasks())) return false;
  if (!any(State::too_wide, product.tasks())) return true;

  using Wide = typename Both<First>::Wide;
  Cut cut = both.cut;  // the same strips, in as many parts as the other kind has blocks of results
  const Product<Wide> wide(both.wide, cut, t, weights(1));
  const int64_t parts = product.tasks() / wide.tasks();
  for (int64_t i = 0; i < wide.tasks(); i++) strips[i] = {strips[i * parts].state, 0.0f};
  wide.run(State::too_wide, no_limit, strips, slots, both.slot_bytes(), parallel, largest);
  t.lost->join(lost_of<Wide>(depth, largest, head.largest, error));
  return !any(State::not_finite, wide.tasks());
}

}  // namespace

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
      .finishes = true,
      .prepared_size = prepared_size<First>,
      .prepare = prepare<First>,
      .prepared_for_all_sizes = true,
  };
}

extern const ConvAlgorithm conv_tiles_gemm = by<Int8x6>("tiles_gemm"), conv_tiles_gemm_tf32 = by<Int8x3>("tiles_gemm_tf32");
extern const ConvAlgorithm conv_fp16_gemm = by<Float16x3>("tiles_gemm"), conv_fp16_gemm_tf32 = by<Float16x1>("tiles_gemm_tf32");
// For matmuls that name their parts.
extern const ConvAlgorithm conv_tiles_int8x6 = by<Int8x6>("tiles_int8x6"), conv_tiles_bf16x9 = by<Bfloat16x9>("tiles_bf16x9"),
                           conv_tiles_bf16x6 = by<Bfloat16x6>("tiles_bf16x6"), conv_tiles_bf16x3 = by<Bfloat16x3>("tiles_bf16x3");

}  // namespace msctx::MSCTX_ISA
