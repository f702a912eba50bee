#include "glue/overflow.h"

#include <cmath>

#include "glue/observed.h"

namespace msctx::glue {
namespace {

// A kind of what is not finite: NaN 1, Inf 2, -Inf 4; any of them as a number 8.
constexpr int number = 8;
int kinds_of(const Statistics& s) { return (s.nan > 0) | (s.positive_inf > 0) << 1 | (s.negative_inf > 0) << 2; }

bool is_number_nonfinite(const c10::IValue& value) {
  return (value.isDouble() && !std::isfinite(value.toDouble())) ||
         (value.isScalar() && value.toScalar().isFloatingPoint() && !std::isfinite(value.toScalar().toDouble()));
}

// What of it is not finite; a number, as a tensor too, is what somebody wrote there.
int kinds_in(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  tensors_in(value, tensors);
  int kinds = 0;
  for (const at::Tensor& t : tensors)
    if (is_readable(t) && has_nonfinite(t)) kinds |= t.dim() == 0 ? number : kinds_of(statistics_of(t));
  return kinds;
}

}  // namespace

bool has_overflowed(
    const Operator& op, int wanted, const std::vector<c10::IValue>& arguments, const std::vector<bool>& had_nonfinite,
    const std::vector<at::Tensor>& results) {
  if (!op.makes_data || op.puts_constants || !(wanted & (op.accumulates ? 2 : 1))) return false;
  for (const c10::IValue& value : arguments)
    if (is_number_nonfinite(value)) return false;
  int kinds = 0;
  for (const at::Tensor& t : results)
    if (is_readable(t) && has_nonfinite(t)) kinds |= kinds_of(statistics_of(t));
  if (!kinds) return false;
  const bool is_passed_on = (wanted & 4) != 0;
  for (const bool one : had_nonfinite)
    if (one) return is_passed_on && !op.moves_data;
  int given = 0;
  for (size_t i = 0; i < arguments.size(); i++)
    if (i >= op.is_written.size() || !(op.is_written[i] || op.is_result[i])) given |= kinds_in(arguments[i]);
  // Inf becomes NaN, and 1/-0 -Inf: what was not finite is passed on. A mask's -Inf has made no NaN before.
  if (given == number) return false;
  given &= ~number;
  return given == 0 || (given == 4 ? (kinds & 3) != 0 : is_passed_on);
}

}  // namespace msctx::glue
