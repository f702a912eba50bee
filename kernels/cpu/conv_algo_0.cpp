// algo_0 of the backward passes: products of pieces of the sum, added atomically as the threads come to them. No workspace; the order of
// the additions, and with it the last bits, changes from run to run.

#include "msctx/atomic_sum.h"
#include "msctx/lowering.h"

namespace msctx::MSCTX_ISA {
namespace algo_0 {
namespace {

constexpr int64_t channels = 16;  // output channels whose products are summed before they are added

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

size_t workspace(const ConvProblem&, Op, int) { return 0; }

double error(const ConvProblem& p, Op op) {
  if (op == Op::backward_weight) return weight_gradient_error(p);
  return 0x1p-24 * double(channels + volume(p.window) * divide_up(group_k(p), channels));
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  if (op == Op::backward_data) {
    backward_data(p, t, parallel);
    return true;
  }
  const auto* x = static_cast<const float*>(t.x);
  const int64_t gc = group_c(p), taps = volume(p.window), in = volume(p.in);
  weight_gradient_by_pieces(p, t, parallel, [&](int64_t g, int64_t n, int64_t i, int64_t first, int64_t last, float* to) {
    lower(p, x + (n * p.c + g * gc + i / taps) * in, tap_of(p, i % taps), first, last, to);
  });
  return true;
}

}  // namespace
}  // namespace algo_0

extern const ConvAlgorithm conv_algo_0;
const ConvAlgorithm conv_algo_0 = {
    .name = "algo_0",
    .math = "strict",
    .fixed_order = false,
    .same_on_every_isa = false,
    .reasons = algo_0::reasons,
    .workspace = algo_0::workspace,
    .error = algo_0::error,
    .run = algo_0::run,
};

}  // namespace msctx::MSCTX_ISA
