// implicit_gemm: the matmul of gemm, whose right operand is read from the input in place, a small panel at a time. No workspace. In
// channels_last the input is the left operand, some rows of an image at a time, and panels of the weight are the right one, kept or not.
// implicit_precomp_gemm finds the elements of the input by a table of indices, computed once a call into a workspace of taps x output
// positions.

#include "vec.h"

#include "msctx/epilogue.h"
#include "msctx/index_table.h"
#include "msctx/packed_product.h"

namespace msctx::MSCTX_ISA {

void finish(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);

namespace implicit_gemm {
namespace {

void precomp_reasons(const ConvProblem& p, Op op, Reasons& why) {
  forward_reasons(p, op, why);
  why.add_if(!index_table_fits(p), "its indices have 32 bits, too few for such an image");
}

size_t precomp_workspace(const ConvProblem& p, Op, int) { return index_table_size(p); }

// read(plane, tap, first, last, out): the elements of a plane under a tap for the output positions first to last.
template <class Read>
void product(const ConvProblem& p, const ConvTensors& t, const Parallel& parallel, const Read& read) {
  const auto *x = static_cast<const float*>(t.x), *w = static_cast<const float*>(t.w);
  auto* y = static_cast<float*>(t.y);
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);
  const int64_t depth = gc * taps, images = p.n * p.groups;
  const auto parts = Parts::of<float>(gk, out, images, parallel.threads);
  parallel_for(parallel, images * parts.count(), [&](int64_t task, int) {
    const int64_t image = task / parts.count(), first_row = image % p.groups * gk;
    const float* const from = x + image * gc * in;
    parts.at(task % parts.count(), [&](int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
      const auto right = terms<float>([&](int64_t k, int64_t first, int64_t last, float* to) {
        read(from + k / taps * in, k % taps, j0 + first, j0 + last, to);
      });
      product_into(
          rows, columns, depth, Strided<float, float>{w + (first_row + i0) * depth, depth, 1}, right, y + (image * gk + i0) * out + j0, out);
    });
  });
}

// The input under the windows of some output positions of an image, as the rows of the lowered matrix: some channels of a group at a time are
// copied, with zeros around, into planes, or side by side where they are few. All terms lie behind the first of a row as those of other rows do.
class ImageRows {
 public:
  static constexpr int64_t most_rows = 112;
  // How many positions of an output row fit.
  static int64_t most_columns(const ConvProblem& p) {
    if (terms_of_part(p) > most_terms || reaches_far(p)) return 0;
    const int64_t beyond = most_copied / (extent(p, 1, 1) * channels_of_part(p)) - extent(p, 2, 1);
    return beyond < 0 ? 0 : smaller(most_rows, smaller(p.out[2], beyond / apart(p, 2) + 1));
  }
  // How many rows do, of which one does.
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
  auto some(int64_t row, int64_t term) const {
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

// `panels`: those that are kept, or null.
void run_last(const ConvProblem& p, const ConvTensors& t, const float* panels, const float* w, const Parallel& parallel) {
  const int64_t gk = group_k(p), depth = group_c(p) * volume(p.window), out = volume(p.out);
  const int64_t across = divide_up(p.out[2], ImageRows::most_columns(p)), wide = divide_up(p.out[2], across);
  const int64_t down = divide_up(p.out[1], across == 1 ? ImageRows::most_lines(p) : 1), high = divide_up(p.out[1], down);
  const int64_t pieces = down * across, images = p.n * p.groups, strips = strips_of(gk);
  const int64_t apart = images * pieces % parallel.threads == 0 || images * pieces >= 4 * parallel.threads ? 1 : smaller(strips, parallel.threads);
  const int64_t each = divide_up(strips, apart), of_group = panels_columns(gk) * depth;
  parallel_for(parallel, images * pieces * apart, [&](int64_t task, int) {
    const int64_t image = task / (pieces * apart), n = image / p.groups, group = image % p.groups, place = task / apart % pieces;
    const int64_t h = place / across * high, v = place % across * wide, first = task % apart * each;
    const int64_t lines = smaller(high, p.out[1] - h), columns = smaller(wide, p.out[2] - v);
    if (lines <= 0 || columns <= 0 || first >= strips) return;
    ImageRows left(p, static_cast<const float*>(t.x) + n * p.c * volume(p.in), group, h, v, lines, columns);
    const int64_t at = (n * out + h * p.out[2] + v) * p.k;  // these positions are neighbours
    float* const result = static_cast<float*>(t.y);
    const auto load = [&](int64_t j, int64_t there, float* sums, int64_t pitch) {
      for (int64_t i = 0; i < lines * columns; i++)
        std::memcpy(sums + i * pitch, result + at + i * p.k + group * gk + j, sizeof(float) * size_t(there));
    };
    ConvTensors part = t;
    const auto store = [&](int64_t j, int64_t there, const float* sums, int64_t pitch, bool is_last) {
      part.epilogue = is_last ? t.epilogue : nullptr;
      store_rows(part, lines * columns, there, sums, pitch, result, at + group * gk + j, p.k, group * gk + j);
    };
    const auto compute = [&](auto&& right) {
      packed_product(lines * columns, first, smaller(strips, first + each), gk, depth, left, right, load, store);
    };
    if (panels)
      compute(KeptPanels{panels + group * of_group, depth});
    else
      compute(FreshPanels{{w + group * gk * depth, depth, 1}});
  });
}

// Of windows that reach too far, an element at a time.
void run_far(const ConvProblem& p, const ConvTensors& t, const float* w, const Parallel& parallel) {
  const auto *x = static_cast<const float*>(t.x);
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), out = volume(p.out), depth = gc * taps, images = p.n * p.groups;
  const auto parts = Parts::of<float>(out, gk, images, parallel.threads);
  parallel_for(parallel, images * parts.count(), [&](int64_t task, int) {
    const int64_t image = task / parts.count(), n = image / p.groups, group = image % p.groups;
    const float* const from = x + n * p.c * volume(p.in) + group * gc;
    parts.at(task % parts.count(), [&](int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
      const auto left = rows_of<float>([&](int64_t i, int64_t k0, int64_t k1, float* to) {
        const int64_t h = (i0 + i) / p.out[2] * p.stride[1] - p.pad[1], v = (i0 + i) % p.out[2] * p.stride[2] - p.pad[2];
        int64_t c = k0 / taps;
        Tap tap = tap_of(p, k0 % taps);
        for (int64_t k = k0; k < k1; k++) {
          const int64_t row = h + tap.r * p.dilation[1], column = v + tap.s * p.dilation[2];
          const bool is_inside = row >= 0 && row < p.in[1] && column >= 0 && column < p.in[2];
          *to++ = is_inside ? from[(row * p.in[2] + column) * p.c + c] : 0.0f;
          if (++tap.s < p.window[2]) continue;
          tap.s = 0;
          if (++tap.r < p.window[1]) continue;
          tap.r = 0;
          c++;
        }
      });
      const int64_t column = group * gk + j0, at = (n * out + i0) * p.k + column;
      float* const result = static_cast<float*>(t.y) + at;
      product_into(rows, columns, depth, left, Strided<float, float>{w + column * depth, depth, 1}, result, p.k);
      if (t.epilogue) store_rows(t, rows, columns, result, p.k, static_cast<float*>(t.y), at, p.k, column);
    });
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

bool run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared& weight, void*, const Parallel& parallel) {
  if (t.channels_last) {
    const bool is_near = ImageRows::most_columns(p) >= smaller(tile_rows, p.out[2]);
    const auto* const panels = is_near ? static_cast<const float*>(weight()) : nullptr;
    const auto* const w = static_cast<const float*>(t.w || panels ? t.w : weight(plain_weight));
    is_near ? run_last(p, t, panels, w, parallel) : run_far(p, t, w, parallel);
    return true;
  }
  product(p, t, parallel, [&](const float* plane, int64_t tap, int64_t first, int64_t last, float* to) {
    lower(p, plane, tap_of(p, tap), first, last, to);
  });
  if (t.epilogue) finish(*t.epilogue, static_cast<float*>(t.y), p.n, p.k, volume(p.out), false, parallel);
  return true;
}

bool precomp_run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  auto* table = static_cast<int32_t*>(workspace);
  fill_index_table(p, table, parallel);
  product(p, t, parallel, [&, out = volume(p.out)](const float* plane, int64_t tap, int64_t first, int64_t last, float* to) {
    gather(plane, table + tap * out + first, last - first, to);
  });
  return true;
}

}  // namespace
}  // namespace implicit_gemm

extern const ConvAlgorithm conv_implicit_gemm = {
    .name = "implicit_gemm",
    .reasons = forward_reasons,
    .error = gemm_error,
    .run = implicit_gemm::run,
    .reads_channels_last = true,
    .finishes = true,
    .prepared_size = implicit_gemm::prepared_size,
    .prepare = implicit_gemm::prepare,
    .prepared_for_all_sizes = true,
    .prepared_if_kept = true,
};
extern const ConvAlgorithm conv_implicit_precomp_gemm = {
    .name = "implicit_precomp_gemm",
    .reasons = implicit_gemm::precomp_reasons,
    .workspace = implicit_gemm::precomp_workspace,
    .error = gemm_error,
    .run = implicit_gemm::precomp_run,
};

}  // namespace msctx::MSCTX_ISA
