// algo_3 of the weight gradient: algo_0 with a table of indices, computed once a call into a workspace of taps x output positions.

#include "msctx/atomic_sum.h"
#include "msctx/index_table.h"

namespace msctx::MSCTX_ISA {
namespace algo_3 {
namespace {

void reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op != Op::backward_weight, "it computes weight gradients only");
  why.add_if(!index_table_fits(p), "its indices have 32 bits, too few for such an image");
}

size_t workspace(const ConvProblem& p, Op, int) { return index_table_size(p); }

double error(const ConvProblem& p, Op) { return weight_gradient_error(p); }

bool run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  const auto* x = static_cast<const float*>(t.x);
  auto* table = static_cast<int32_t*>(workspace);
  const int64_t gc = group_c(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);
  fill_index_table(p, table, parallel);
  weight_gradient_by_pieces(p, t, parallel, [&](int64_t g, int64_t n, int64_t i, int64_t first, int64_t last, float* to) {
    gather(x + (n * p.c + g * gc + i / taps) * in, table + i % taps * out + first, last - first, to);
  });
  return true;
}

}  // namespace
}  // namespace algo_3

extern const ConvAlgorithm conv_algo_3;
const ConvAlgorithm conv_algo_3 = {
    .name = "algo_3",
    .math = "strict",
    .fixed_order = false,
    .same_on_every_isa = false,
    .reasons = algo_3::reasons,
    .workspace = algo_3::workspace,
    .error = algo_3::error,
    .run = algo_3::run,
};

}  // namespace msctx::MSCTX_ISA
