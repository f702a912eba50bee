// Products in three of float16, as SGEMM-cube has them (Xue et al., arXiv 2507.23387): for chips such as the 910A.
//
// A row of the left factor, a column of the right one, is scaled by a power of two to 2^14 and more. What float16 rounds away of a value,
// times 2^11, is its low half. Of the four products of halves the one of two low ones is left out. A pair of halves has 22 bits or more of
// a value, down to 2^-28 of the largest of the row or column; of smaller values it has 2^-50 of that largest one.
#include "glue/hook.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mm_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>

namespace msctx::glue {
namespace {

bool multiplies_float32 = true;

constexpr double low_bits = 11, largest = 14;

struct Halves {
  at::Tensor all, high, low;  // `all`: the high ones, and what is not finite
  at::Tensor unit;            // what a sum of their products is to be multiplied by
};

// float32 tensors of float16 values: torch_npu gives them to CANN as they are, which rounds them without loss and, on these chips, stores the
// sums as float32. Those of float16 tensors it would round to float16.
at::Tensor half_of(const at::Tensor& t) { return t.to(at::kHalf).to(at::kFloat); }

Halves halves_of(const at::Tensor& values, int64_t depth) {
  constexpr int32_t exponent = 0x7f800000, twice_bias = 0x7f000000;
  const at::Tensor finite = values.nan_to_num(0.0, 0.0, 0.0);
  const at::Tensor peak = finite.abs().amax(depth, true).clamp_min(std::exp2(-112.0));  // so that no factor is denormal
  const at::Tensor unit = peak.view(at::kInt).bitwise_and(exponent).view(at::kFloat).mul(std::exp2(-largest));
  const at::Tensor scaled = finite.mul(unit.view(at::kInt).neg().add(twice_bias).view(at::kFloat));  // by 1 / unit
  const at::Tensor high = half_of(scaled), low = half_of(scaled.sub(high).mul(std::exp2(low_bits)));
  return {high.add(values.sub(finite)), high, low, unit};
}

void reasons_of_halves(const ConvProblem& p, Op, Reasons& why) {
  why.add_if(p.dtype != DType::f32, "it computes float32 only");
  why.add_if(multiplies_float32, "this NPU multiplies float32 matrices itself");
}
void reasons_of_npu(const ConvProblem& p, Op, Reasons& why) {
  why.add_if(p.dtype != DType::f32, "it computes float32 only");
  why.add_if(!multiplies_float32, "this NPU multiplies float16 matrices only");
}

// Sums of float32 in any order, and the halves: 2^-23 of each value, 2^-22 of the product of both is left out.
double error_of_halves(const ConvProblem& p, Op op) {
  const int64_t depth = op == Op::forward ? p.c : p.k;
  return std::exp2(-24.0) * double(depth + 4) + std::exp2(-21.0);
}
// Of a matrix of each batch: both halves of each factor, the high ones with what is not finite, and the sum of the products with a low one.
size_t memory_of_halves(const ConvProblem& p, Op op, int) {
  const int64_t left = op == Op::forward ? x_size(p) : y_size(p), result = op == Op::forward ? y_size(p) : x_size(p);
  return size_t(4 * (3 * (left + w_size(p)) + result));
}

bool never_run(const ConvProblem&, Op, const ConvTensors&, const Prepared&, void*, const Parallel&) { return false; }

}  // namespace

void set_npu(bool has_float32) { multiplies_float32 = has_float32; }

const ConvTable& npu_table() {
  static const ConvAlgorithm from_halves{
      .name = "npu", .math = "fp32-grade", .fixed_order = true, .same_on_every_isa = false, .reasons = reasons_of_halves,
      .workspace = memory_of_halves, .error = error_of_halves, .run = never_run};
  static const ConvAlgorithm by_npu{
      .name = "npu", .math = "strict", .fixed_order = true, .same_on_every_isa = false, .reasons = reasons_of_npu,
      .error = [](const ConvProblem&, Op) { return 0.0; }, .run = never_run, .provider = "torch"};
  static const ConvRow rows[] = {
      {Direction::matmul, "fp16x3", &from_halves, nullptr},
      {Direction::matmul, "fp16x3", &by_npu, nullptr},
      {Direction::matmul, "strict", &by_npu, nullptr}};
  static const ConvTable table{.isa = "ascend", .rows = rows, .count = 3, .is_computed_again = false};
  return table;
}

bool computes_from_halves(const ConvRow& row) { return &row == npu_table().rows; }

at::Tensor product_of_halves(const at::Tensor& a, const at::Tensor& b) {
  const c10::impl::ExcludeDispatchKeyGuard as_they_are(c10::autocast_dispatch_keyset);
  const auto product = [](const at::Tensor& x, const at::Tensor& y) { return x.dim() == 3 ? at::_ops::bmm::call(x, y) : at::_ops::mm::call(x, y); };
  const Halves x = halves_of(a, -1), y = halves_of(b, -2);
  const at::Tensor low = product(x.high, y.low).add_(product(x.low, y.high));
  const at::Tensor sum = product(x.all, y.all).add_(low, std::exp2(-low_bits));
  return sum.mul_(at::minimum(x.unit, y.unit)).mul_(at::maximum(x.unit, y.unit));  // in this order nothing overflows that should not
}

}  // namespace msctx::glue
