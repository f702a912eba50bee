// algo_0 of the backward passes: products of pieces of the sum, added atomically as the threads come to them. No workspace; the order of
// the additions, and with it the last bits, changes from run to run. algo_3 is the weight gradient with a table of indices, computed once
// a call into a workspace of taps x output positions.

#include "msctx/index_table.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {
namespace algo_0 {
namespace {

constexpr int64_t channels = 16;  // output channels whose products are summed before they are added

void atomic_add(float* sum, float value) {
  auto* bits = reinterpret_cast<uint32_t*>(sum);
  uint32_t before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(
      bits, &before, as_bits(as_float(before) + value), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// The weight gradient as products of pieces of the output positions, each added atomically.
// read(plane, tap, first, last, out): the elements of a plane of x under a tap for the output positions first to last.
template <class Read>
void weight_gradient_by_pieces(const ConvProblem& p, const ConvTensors& t, const Parallel& parallel, const Read& read) {
  constexpr int64_t piece = 8 * depth_block;
  const auto *x = static_cast<const float*>(t.x), *y = static_cast<const float*>(t.y);
  auto* w = static_cast<float*>(t.w);
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out), rows = gc * taps;
  const int64_t pieces = divide_up(out, piece);
  const auto parts = Parts::stored<float>(rows, gk, p.n * pieces * p.groups, parallel.threads);
  const int64_t each = parts.count();
  std::memset(w, 0, sizeof(float) * w_size(p));
  parallel_for(parallel, p.n * pieces * p.groups * each, [&](int64_t task, int) {
    const int64_t g = task / each % p.groups, first = task / each / p.groups % pieces * piece, n = task / each / p.groups / pieces;
    const float* gradient = y + (n * p.k + g * gk) * out + first;
    parts.at(task % each, [&](int64_t i0, int64_t count, int64_t j0, int64_t channels) {
      product_rows<float>(
          count, channels, smaller(piece, out - first),
          rows_of<float>([&](int64_t i, int64_t k0, int64_t k1, float* to) {
            read(x + (n * p.c + g * gc + (i0 + i) / taps) * in, (i0 + i) % taps, first + k0, first + k1, to);
          }),
          Strided<float, float>{gradient + j0 * out, out, 1},
          [&](int64_t i, const float* from, int64_t n_) {
            for (int64_t j = 0; j < n_; j++) atomic_add(w + (g * gk + j0 + j) * rows + i0 + i, from[j]);
          });
    });
  });
}

double weight_gradient_error(const ConvProblem& p) {
  return sum_error(p.dtype, 8 * depth_block) + 0x1p-24 * double(p.n * divide_up(volume(p.out), 8 * depth_block));
}

void backward_data(const ConvProblem& p, const ConvTensors& t, const Parallel& parallel) {
  const auto *w = static_cast<const float*>(t.w), *y = static_cast<const float*>(t.y);
  auto* x = static_cast<float*>(t.x);
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);
  const int64_t pieces = divide_up(gk, channels);
  std::memset(x, 0, sizeof(float) * x_size(p));
  parallel_for(parallel, p.n * p.groups * pieces * gc, [&](int64_t task, int) {
    const int64_t c = task % gc, first = task / gc % pieces * channels;
    const int64_t g = task / gc / pieces % p.groups, n = task / gc / pieces / p.groups;
    const int64_t count = smaller(channels, gk - first);
    const float* gradient = y + (n * p.k + g * gk + first) * out;
    const float* weights = w + ((g * gk + first) * gc + c) * taps;
    float* plane = x + (n * p.c + g * gc + c) * in;
    for (int64_t tap = 0; tap < taps; tap++)
      for_runs(
          p, tap_of(p, tap), 0, out,
          [&](int64_t at, int64_t run, int64_t target) {
            for (int64_t j = 0; j < run; j += Vec::width) {
              const int lanes = int(smaller(Vec::width, run - j));
              Vec sum = Vec::zero();
              for (int64_t k = 0; k < count; k++)
                sum = fma(Vec::all(weights[k * gc * taps + tap]), Vec::load(gradient + k * out + at + j, lanes), sum);
              float sums[Vec::width];
              sum.store(sums);
              for (int i = 0; i < lanes; i++) atomic_add(plane + target + (j + i) * p.stride[2], sums[i]);
            }
          },
          [](int64_t, int64_t) {});
  });
}

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op == Op::forward, "it computes gradients only");
}

double error(const ConvProblem& p, Op op) {
  if (op == Op::backward_weight) return weight_gradient_error(p);
  return 0x1p-24 * double(channels + volume(p.window) * divide_up(group_k(p), channels));
}

// algo_3
void table_reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op != Op::backward_weight, "it computes weight gradients only");
  why.add_if(!index_table_fits(p), "its indices have 32 bits, too few for such an image");
}

size_t table_workspace(const ConvProblem& p, Op, int) { return index_table_size(p); }

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  if (op == Op::backward_data) {
    backward_data(p, t, parallel);
    return true;
  }
  weight_gradient_by_pieces(p, t, parallel, [&](const float* plane, int64_t tap, int64_t first, int64_t last, float* to) {
    lower(p, plane, tap_of(p, tap), first, last, to);
  });
  return true;
}

bool table_run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  auto* table = static_cast<int32_t*>(workspace);
  fill_index_table(p, table, parallel);
  weight_gradient_by_pieces(p, t, parallel, [&, out = volume(p.out)](const float* plane, int64_t tap, int64_t first, int64_t last, float* to) {
    gather(plane, table + tap * out + first, last - first, to);
  });
  return true;
}

}  // namespace
}  // namespace algo_0

extern const ConvAlgorithm conv_algo_0 = {
    .name = "algo_0",
    .fixed_order = false,
    .same_on_every_isa = false,
    .reasons = algo_0::reasons,
    .error = algo_0::error,
    .run = algo_0::run,
};
extern const ConvAlgorithm conv_algo_3 = {
    .name = "algo_3",
    .fixed_order = false,
    .same_on_every_isa = false,
    .reasons = algo_0::table_reasons,
    .workspace = algo_0::table_workspace,
    .error = algo_0::error,
    .run = algo_0::table_run,
};

}  // namespace msctx::MSCTX_ISA
