// implicit_gemm of channels_last images: the input is the left operand, some rows of an image at a time, and panels of the weight are the right
// one, kept or made in the call. No workspace. Channels-first images are computed as by conv_implicit_gemm.cpp; the bits are the same.

#include "vec.h"

#include "msctx/epilogue.h"
#include "msctx/lowering.h"
#include "msctx/packed_product.h"

namespace msctx::MSCTX_ISA {

extern const ConvAlgorithm conv_implicit_gemm;
void finish(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);

namespace windows {
namespace {

constexpr int64_t enough_rows = 48;  // for a panel that is made in the call
constexpr int64_t enough_channels = 16;  // of a group, for a strip

// The input under the windows of some output positions of an image, as the rows of the lowered matrix: some channels of a group at a time are
// copied, with zeros around, into planes, or side by side where they are few. The offsets of the terms are the same for all rows.
class ImageRows {
 public:
  static constexpr int64_t most_rows = 112;
  // How many positions of an output row fit.
  static int64_t most_columns(const ConvProblem& p) {
    if (terms_of_part(p) > most_terms || reaches_far(p)) return 0;
    const int64_t beyond = most_copied / (extent(p, 1, 1) * channels_of_part(p)) - extent(p, 2, 1);
    return beyond < 0 ? 0 : smaller(most_rows, smaller(p.out[2], beyond / apart(p, 2) + 1));
  }
  // How many whole output rows fit, where one does.
  static int64_t most_lines(const ConvProblem& p) {
    const int64_t beyond = most_copied / (extent(p, 2, p.out[2]) * channels_of_part(p)) - extent(p, 1, 1);
    return larger(1, smaller(smaller(p.out[1], most_rows / p.out[2]), beyond / apart(p, 1) + 1));
  }
  // `lines` rows of `columns` positions, from (h, v) on.
  ImageRows(const ConvProblem& p, const float* image, int64_t group, int64_t h, int64_t v, int64_t lines, int64_t columns)
      : p_(p), image_(image + group * group_c(p)), top_(h * p.stride[1] - p.pad[1]), left_(v * p.stride[2] - p.pad[2]),
        rows_(lines * columns), columns_(columns), high_(extent(p, 1, lines)), wide_(extent(p, 2, columns)) {}
  int64_t terms_of_part() const { return terms_of_part(p_); }
  void begin(int64_t from, int64_t to) {
    const int64_t taps = volume(p_.window), channels = (to - from) / taps;
    const bool are_few = channels <= 32;  // two lines of the cache
    const int64_t plane = are_few ? 1 : high_ * wide_, next = are_few ? channels : 1;
    copy(from / taps, channels, are_few);
    for (int64_t i = 0; i < rows_; i++) at_[i] = copied_ + (i / columns_ * apart(p_, 1) * wide_ + i % columns_ * apart(p_, 2)) * next;
    int32_t* offset = offsets_;
    for (int64_t c = 0; c < channels; c++)
      for (int64_t r = 0; r < p_.window[1]; r++)
        for (int64_t s = 0; s < p_.window[2]; s++)
          *offset++ = int32_t(c * plane + (r * p_.dilation[1] * wide_ + s * p_.dilation[2]) * next);
  }
  template <int rows>
  auto rows_from(int64_t row, int64_t term) const {
    struct {
      const float* at[rows];
      const int32_t* offset;
      float operator()(int i) const { return at[i][*offset]; }
      void next() { offset++; }
    } found;
    found.offset = offsets_ + term;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) found.at[i] = at_[row + i];
    return found;
  }

 private:
  static constexpr int64_t most_copied = 40 << 10, most_terms = 8 << 10;
  // Under windows of one element, nothing else is copied: elements of the input from one that is to the next, and from position to position.
  static int64_t step(const ConvProblem& p, int axis) { return p.window[axis] == 1 ? p.stride[axis] : 1; }
  static int64_t apart(const ConvProblem& p, int axis) { return p.stride[axis] / step(p, axis); }
  static int64_t extent(const ConvProblem& p, int axis, int64_t count) {
    return (count - 1) * apart(p, axis) + (p.window[axis] - 1) * p.dilation[axis] + 1;
  }
  // All, or as many as have whole blocks of terms.
  static int64_t channels_of_part(const ConvProblem& p) {
    return smaller(group_c(p), larger(1, 8 / volume(p.window)) * depth_block);
  }
  static int64_t terms_of_part(const ConvProblem& p) { return channels_of_part(p) * volume(p.window); }

  void copy(int64_t first, int64_t channels, bool are_few) {
    std::memset(copied_, 0, sizeof(float) * size_t(high_ * wide_ * channels));
    const int64_t next = step(p_, 2) * p_.c;
    int64_t begin, end;
    inside(left_, step(p_, 2), p_.in[2], wide_, begin, end);
    for (int64_t r = 0; r < high_; r++) {
      const int64_t row = top_ + r * step(p_, 1);
      if (row < 0 || row >= p_.in[1]) continue;
      const float* const from = image_ + (row * p_.in[2] + left_ + begin * step(p_, 2)) * p_.c + first;
      if (are_few) {
        float* to = copied_ + (r * wide_ + begin) * channels;
        if (next == channels) {
          std::memcpy(to, from, sizeof(float) * size_t((end - begin) * channels));
          continue;
        }
        for (int64_t i = 0; i < end - begin; i++, to += channels) {
          int64_t c = 0;
          for (; c + Vec::width <= channels; c += Vec::width) Vec::load(from + i * next + c).store(to + c);
          for (; c < channels; c++) to[c] = from[i * next + c];
        }
        continue;
      }
      for (int64_t c = 0; c < channels; c += Vec::width)
        for (int64_t v = begin; v < end; v += Vec::width) {
          const int count = int(smaller(Vec::width, channels - c)), across = int(smaller(Vec::width, end - v));
          Vec block[Vec::width];
          for (int i = 0; i < Vec::width; i++) block[i] = i < across ? Vec::load(from + (v - begin + i) * next + c, count) : Vec::zero();
          transpose(block);
          for (int i = 0; i < count; i++) block[i].store(copied_ + ((c + i) * high_ + r) * wide_ + v, across);
        }
    }
  }

  const ConvProblem& p_;
  const float* image_;
  int64_t top_, left_, rows_, columns_, high_, wide_;
  const float* at_[most_rows];
  int32_t offsets_[most_terms];
  alignas(64) float copied_[most_copied];
};

// How the output of an image is cut: rows of it, or parts of a row.
struct Pieces {
  int64_t across, wide, down, high;
  explicit Pieces(const ConvProblem& p) {
    across = divide_up(p.out[2], ImageRows::most_columns(p)), wide = divide_up(p.out[2], across);
    down = divide_up(p.out[1], across == 1 ? ImageRows::most_lines(p) : 1), high = divide_up(p.out[1], down);
  }
  int64_t count() const { return down * across; }
};

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  forward_reasons(p, op, why);
  why.add_if(group_k(p) < enough_channels, "it computes 16 channels of a group or more");
  if (why.count || is_empty(p)) return;
  bool is_near = ImageRows::most_columns(p) > 0;
  if (is_near) {
    const Pieces pieces(p);
    is_near = pieces.wide * pieces.high >= smaller(enough_rows, volume(p.out));
  }
  why.add_if(!is_near, "its windows reach too far, or have too many elements");
}

// `panels`: those that are kept, or null.
void run_last(const ConvProblem& p, const ConvTensors& t, const float* panels, const float* w, const Parallel& parallel) {
  const int64_t gk = group_k(p), depth = group_c(p) * volume(p.window), of_group = panels_columns(gk) * depth;
  const Pieces pieces(p);
  const int64_t images = p.n * p.groups, places = images * pieces.count(), strips = strips_of(gk);
  const int64_t parts = places % parallel.threads == 0 || places >= 4 * parallel.threads ? 1 : smaller(strips, parallel.threads);
  const int64_t each = divide_up(strips, parts);
  parallel_for(parallel, places * parts, [&](int64_t task, int) {
    const int64_t image = task / (pieces.count() * parts), n = image / p.groups, group = image % p.groups, place = task / parts % pieces.count();
    const int64_t h = place / pieces.across * pieces.high, v = place % pieces.across * pieces.wide, first = task % parts * each;
    const int64_t lines = smaller(pieces.high, p.out[1] - h), columns = smaller(pieces.wide, p.out[2] - v);
    if (lines <= 0 || columns <= 0 || first >= strips) return;
    ImageRows left(p, static_cast<const float*>(t.x) + n * p.c * volume(p.in), group, h, v, lines, columns);
    const StoredRows to{t, lines * columns, static_cast<float*>(t.y), (n * p.out[1] + h) * p.out[2] + v, group * gk, p.k};
    const auto compute = [&](auto&& right) { packed_product(first, smaller(strips, first + each), gk, depth, left, right, to); };
    if (panels)
      compute(KeptPanels{panels + group * of_group, depth});
    else
      compute(FreshPanels({w + group * gk * depth, depth, 1}));
  });
}

size_t prepared_size(const ConvProblem& p, Op, int) {
  return sizeof(float) * size_t(p.groups * panels_columns(group_k(p)) * group_c(p) * volume(p.window));
}
void prepare(const ConvProblem& p, Op, int, const void* w, void* prepared, const Parallel& parallel) {
  const int64_t gk = group_k(p), depth = group_c(p) * volume(p.window);
  for (int64_t group = 0; group < p.groups; group++)
    make_panels(
        Strided<float, float>{static_cast<const float*>(w) + group * gk * depth, depth, 1}, gk, depth,
        static_cast<float*>(prepared) + group * panels_columns(gk) * depth, parallel);
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared& weight, void* workspace, const Parallel& parallel) {
  const auto* const panels = t.channels_last ? static_cast<const float*>(weight()) : nullptr;
  ConvTensors now = t;
  if (!now.w && !panels) now.w = const_cast<void*>(weight(plain_weight));
  if (t.channels_last) {
    run_last(p, now, panels, static_cast<const float*>(now.w), parallel);
    return true;
  }
  conv_implicit_gemm.run(p, op, now, weight, workspace, parallel);
  if (t.epilogue) finish(*t.epilogue, static_cast<float*>(t.y), p.n, p.k, volume(p.out), false, parallel);
  return true;
}

}  // namespace
}  // namespace windows

extern const ConvAlgorithm conv_windows = {
    .name = "windows",
    .reasons = windows::reasons,
    .error = gemm_error,
    .run = windows::run,
    .reads_channels_last = true,
    .finishes = true,
    .prepared_size = windows::prepared_size,
    .prepare = windows::prepare,
    .prepared_for_all_sizes = true,
    .prepared_if_kept = true,
};

}  // namespace msctx::MSCTX_ISA
