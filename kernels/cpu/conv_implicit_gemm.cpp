// implicit_gemm: the matmul of gemm, whose right operand is read from the input in place, a small panel at a time. No workspace.
// implicit_precomp_gemm finds the elements of the input by a table of indices, computed once a call into a workspace of taps x output
// positions.

#include "msctx/index_table.h"
#include "msctx/matrix_product.h"

namespace msctx::MSCTX_ISA {
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

bool run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  product(p, t, parallel, [&](const float* plane, int64_t tap, int64_t first, int64_t last, float* to) {
    lower(p, plane, tap_of(p, tap), first, last, to);
  });
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
};
extern const ConvAlgorithm conv_implicit_precomp_gemm = {
    .name = "implicit_precomp_gemm",
    .reasons = implicit_gemm::precomp_reasons,
    .workspace = implicit_gemm::precomp_workspace,
    .error = gemm_error,
    .run = implicit_gemm::precomp_run,
};

}  // namespace msctx::MSCTX_ISA
