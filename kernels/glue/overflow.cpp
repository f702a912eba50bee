#include "glue/overflow.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/masked_fill.h>

#include <algorithm>
#include <cmath>

#include "glue/observed.h"

namespace msctx::glue {
namespace {

// A kind of what is not finite: NaN 1, Inf 2, -Inf 4; as a number, which somebody has written there, NaN 8, and Inf of either sign 16.
constexpr int number_nan = 8, number_inf = 16;
int kinds_of(const Statistics& s) { return (s.nan > 0) | (s.positive_inf > 0) << 1 | (s.negative_inf > 0) << 2; }

int kinds_of_number(const c10::IValue& value) {
  const bool is_scalar = value.isScalar() && value.toScalar().isFloatingPoint();
  if (!value.isDouble() && !is_scalar) return 0;
  const double found = value.isDouble() ? value.toDouble() : value.toScalar().toDouble();
  return std::isnan(found) ? number_nan : std::isinf(found) ? number_inf : 0;
}

// What of a tensor of any layout is not finite.
int kinds_of(const at::Tensor& t) {
  const at::Tensor values = values_of(t);
  return values.defined() && has_nonfinite(values) ? kinds_of(statistics_of(values)) : 0;
}

bool may_hold_nonfinite(const at::Tensor& t) { return (t.is_floating_point() || t.is_complex()) && !values_of(t).defined(); }

// What of it is not finite. A tensor without dimensions is a number, unless it is trained.
int kinds_in(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  tensors_in(value, tensors);
  int kinds = 0;
  for (const at::Tensor& t : tensors)
    if (const int found = kinds_of(t)) {
      kinds |= t.is_nested() || t.dim() != 0 || t.requires_grad() ? found : found & 1 ? number_nan : number_inf;
    }
  return kinds;
}

// What of a result is not finite on purpose: logarithms of zero, and extremes of nothing.
int kinds_meant(const Operator& op, const std::vector<c10::IValue>& arguments, size_t result) {
  if (op.name == "aten::_ctc_loss") return result == 1 ? 4 : 0;
  if (op.name != "aten::segment_reduce" || arguments.size() < 2 || !arguments[1].isString()) return 0;
  return arguments[1].toStringRef() == "max" ? 4 : arguments[1].toStringRef() == "min" ? 2 : 0;
}

int64_t nonfinite_in(const at::Tensor& t) {
  const Statistics s = statistics_of(t);
  return s.nan + s.positive_inf + s.negative_inf;
}

// Whether a result holds more than it was given: what is not finite where nothing is in the arguments, at the same place. It cannot be
// told of operators in which a value reaches many places.
bool makes_more(const Operator& op, const std::vector<c10::IValue>& arguments, const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < arguments.size(); i++) {
    std::vector<at::Tensor> tensors;
    if (i >= op.is_written.size() || !(op.is_written[i] || op.is_result[i])) tensors_in(arguments[i], tensors);
    for (const at::Tensor& t : tensors) {
      if (!kinds_of(t)) continue;
      if (!is_readable(t) || (!op.is_pointwise && !(op.adds_first && i == 0))) return false;
      given.push_back(t);
    }
  }
  for (at::Tensor left : results) {
    if (!is_readable(left) || !has_nonfinite(left)) continue;
    for (const at::Tensor& t : given)
      if (!at::is_expandable_to(t.sizes(), left.sizes())) return false;
    if (op.keeps_nonfinite && given.size() == 1 && !left.is_complex() &&  // to count is cheaper
        nonfinite_in(left) == nonfinite_in(given[0]) * (left.numel() / given[0].numel()))
      continue;
    for (const at::Tensor& t : given) left = at::masked_fill(left, at::logical_not(at::isfinite(t)).to(left.device()), 0);
    if (has_nonfinite(left)) return true;
  }
  return false;
}

}  // namespace

bool has_overflowed(
    const Operator& op, int wanted, const std::vector<c10::IValue>& arguments,
    const std::vector<std::optional<Statistics>>& before, const std::vector<at::Tensor>& results) {
  if (!op.makes_data || op.puts_constants || !(wanted & (op.accumulates ? 2 : 1))) return false;
  int given = 0, kinds = 0;
  for (const c10::IValue& value : arguments) given |= kinds_of_number(value);
  if (given & number_nan) return false;
  for (size_t i = 0; i < results.size(); i++)
    if (const int found = kinds_of(results[i])) kinds |= found & ~kinds_meant(op, arguments, i);
  if (!kinds) return false;
  const bool is_passed_on = (wanted & 4) != 0;
  bool is_known = true;
  for (const auto& one : before) {
    if (one && kinds_of(*one)) return is_passed_on && !op.moves_data;
    is_known &= one.has_value();
  }
  for (size_t i = 0; i < arguments.size(); i++) {
    if (i < op.is_written.size() && (op.is_written[i] || op.is_result[i])) continue;
    given |= kinds_in(arguments[i]);
    std::vector<at::Tensor> tensors;
    tensors_in(arguments[i], tensors);
    is_known &= !std::ranges::any_of(tensors, may_hold_nonfinite);
  }
  // Inf becomes NaN, and 1/-0 -Inf: what was not finite is passed on. A mask's -Inf, and a number, have made no NaN before.
  if (given & number_nan) return false;
  if (given == number_inf) return (kinds & 1) != 0;
  if (!given || (!(given & number_inf) && makes_more(op, arguments, results))) return is_known || is_passed_on;
  given &= ~number_inf;
  return given == 4 ? (kinds & 3) != 0 : is_passed_on;
}

}  // namespace msctx::glue
