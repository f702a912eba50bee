// implicit_gemm: the matrix product of gemm, whose right operand is read from the input in place, a small panel at a time. No workspace.

#include "msctx/lowering.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {
namespace implicit_gemm {
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
  const int64_t depth = gc * taps, images = p.n * p.groups;
  const auto parts = Parts::of<float>(gk, out, images, parallel.threads);
  parallel_for(parallel, images * parts.count(), [&](int64_t task, int) {
    const int64_t image = task / parts.count(), first_row = image % p.groups * gk;
    const float* const from = x + image * gc * in;
    parts.at(task % parts.count(), [&](int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
      const auto lowered = terms<float>([&](int64_t k, int64_t first, int64_t last, float* to) {
        lower(p, from + k / taps * in, tap_of(p, k % taps), j0 + first, j0 + last, to);
      });
      product_into(
          rows, columns, depth, Strided<float, float>{w + (first_row + i0) * depth, depth, 1}, lowered,
          y + (image * gk + i0) * out + j0, out);
    });
  });
  return true;
}

}  // namespace
}  // namespace implicit_gemm

extern const ConvAlgorithm conv_implicit_gemm;
const ConvAlgorithm conv_implicit_gemm = {
    .name = "implicit_gemm",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = true,
    .reasons = implicit_gemm::reasons,
    .workspace = implicit_gemm::workspace,
    .error = implicit_gemm::error,
    .run = implicit_gemm::run,
};

}  // namespace msctx::MSCTX_ISA
