// implicit_precomp_gemm: implicit_gemm that finds the elements of the input by a table of indices, computed once a call into a workspace
// of taps x output positions.

#include "msctx/index_table.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {
namespace implicit_precomp_gemm {
namespace {

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op != Op::forward, "it computes forward products only");
  why.add_if(!index_table_fits(p), "its indices have 32 bits, too few for such an image");
}

size_t workspace(const ConvProblem& p, Op, int) { return index_table_size(p); }

double error(const ConvProblem& p, Op) { return sum_error(p.dtype, group_c(p) * volume(p.window)); }

bool run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  const auto *x = static_cast<const float*>(t.x), *w = static_cast<const float*>(t.w);
  auto* y = static_cast<float*>(t.y);
  auto* table = static_cast<int32_t*>(workspace);
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);
  const int64_t depth = gc * taps, images = p.n * p.groups;
  const auto parts = Parts::of<float>(gk, out, images, parallel.threads);
  fill_index_table(p, table, parallel);
  parallel_for(parallel, images * parts.count(), [&](int64_t task, int) {
    const int64_t image = task / parts.count(), first_row = image % p.groups * gk;
    const float* const from = x + image * gc * in;
    parts.at(task % parts.count(), [&](int64_t i0, int64_t rows, int64_t j0, int64_t columns) {
      const auto gathered = terms<float>([&](int64_t k, int64_t first, int64_t last, float* to) {
        gather(from + k / taps * in, table + k % taps * out + j0 + first, last - first, to);
      });
      product_into(
          rows, columns, depth, Strided<float, float>{w + (first_row + i0) * depth, depth, 1}, gathered,
          y + (image * gk + i0) * out + j0, out);
    });
  });
  return true;
}

}  // namespace
}  // namespace implicit_precomp_gemm

extern const ConvAlgorithm conv_implicit_precomp_gemm;
const ConvAlgorithm conv_implicit_precomp_gemm = {
    .name = "implicit_precomp_gemm",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = true,
    .reasons = implicit_precomp_gemm::reasons,
    .workspace = implicit_precomp_gemm::workspace,
    .error = implicit_precomp_gemm::error,
    .run = implicit_precomp_gemm::run,
};

}  // namespace msctx::MSCTX_ISA
