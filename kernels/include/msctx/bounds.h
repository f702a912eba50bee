// Bounds of errors of plain sums, and of the algorithm that computes what others cannot.
#pragma once

#include "msctx/elements.h"

namespace msctx::MSCTX_ISA {

// The sum over the depth is made in blocks of this many products, each summed from zero: errors grow with the block and the number of
// blocks, not with their product. One number for all instruction sets, since it decides the bits.
constexpr int64_t depth_block = 128;

// The bound that block_product's sums keep: see Higham, "Accuracy and Stability of Numerical Algorithms", section 4.2 (blocked sums).
// It bounds the sum of |products|; over data without massive cancellation that is within a small factor of max|result|.
// `more`: additions that follow.
static inline double sum_error(DType dtype, int64_t depth, int64_t more = 0) {
  const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double chain = double(smaller(depth, depth_block)) + double(divide_up(depth, depth_block)) + double(more);
  return unit * chain + (dtype == DType::f32 || dtype == DType::f64 ? 0.0 : rounding_unit(dtype));
}

// Of `gemm`. Positions of a weight gradient that are added up by block_product at once: blocks of blocks.
constexpr int64_t positions_together = depth_block * depth_block;
static inline double gemm_error(const ConvProblem& p, Op op) {
  const int64_t taps = volume(p.window), positions = volume(p.out);
  switch (op) {
    case Op::forward: return sum_error(p.dtype, group_c(p) * taps);
    case Op::backward_data: return sum_error(p.dtype, group_k(p), taps);
    default: return sum_error(p.dtype, smaller(positions, positions_together), p.n * divide_up(positions, positions_together));
  }
}
static inline void forward_reasons(const ConvProblem& p, Op op, Reasons& why) {
  why.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
  why.add_if(op != Op::forward, "it computes forward products only");
}
// Of an algorithm that leaves to gemm what it cannot compute.
static inline double or_gemm_error(double error, const ConvProblem& p, Op op) {
  const double gemm = gemm_error(p, op);
  return error > gemm ? error : gemm;
}

}  // namespace msctx::MSCTX_ISA
