// implicit_gemm: the matrix product of gemm, whose right operand is read from the input in place, a small panel at a time. No workspace.

#include "msctx/lowering.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {
namespace {

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op != Op::forward, "it computes forward products only");
}

size_t workspace(const ConvProblem&, Op, int) { return 0; }

double error(const ConvProblem& p, Op) { return sum_error(p.dtype, group_c(p) * volume(p.window)); }

bool run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  const auto *x = static_cast<const float*>(t.x), *w = static_cast<const float*>(t.w);
  auto* y = static_cast<float*>(t.y);
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);
  const int64_t depth = gc * taps, each = blocks<float>(gk, out);
  parallel_for(parallel, p.n * p.groups * each, [&](int64_t task, int) {
    const int64_t n = task / each / p.groups, g = task / each % p.groups;
    const float* image = x + (n * p.c + g * gc) * in;
    for_block<float>(task % each, gk, out, [&](int64_t i0, int64_t rows, int64_t j0, int64_t count) {
      block_product<float>(
          rows, count, depth, Strided<float, float>{w + (g * gk + i0) * depth, depth, 1},
          [&](int64_t k, int64_t a, int64_t b, float* to) {
            lower(p, image + k / taps * in, tap_of(p, k % taps), j0 + a, j0 + b, to);
          },
          [&](int64_t i, const float* from, int64_t n_) {
            std::memcpy(y + (n * p.k + g * gk + i0 + i) * out + j0, from, sizeof(float) * n_);
          });
    });
  });
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_implicit_gemm;
const ConvAlgorithm conv_implicit_gemm = {
    .name = "implicit_gemm",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = true,
    .reasons = reasons,
    .workspace = workspace,
    .error = error,
    .run = run,
};

}  // namespace msctx::MSCTX_ISA
