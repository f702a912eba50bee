// Which operator makes what is not finite.
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cmath>
#include <iterator>

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

// What of a dense tensor is not finite.
int kinds_of(const at::Tensor& t) { return is_readable(t) && has_nonfinite(t) ? kinds_of(statistics_of(t)) : 0; }

bool may_hold_nonfinite(const at::Tensor& t) {
  return (t.is_floating_point() || t.is_complex()) && !is_readable(t) && !t._is_zerotensor();
}

// A tensor without dimensions may stand for a number that is written in the program.
int as_given(const Operator& op, const at::Tensor& t, int kinds) {
  const bool is_number = !t.is_nested() && t.dim() == 0 && (op.chooses || op.moves_data || t.unsafeGetTensorImpl()->is_wrapped_number());
  if (!kinds || !is_number || t.requires_grad()) return kinds;
  return kinds & 1 ? number_nan : number_inf;
}

// Nobody means an infinity there.
bool is_trained(const at::Tensor& t) { return t.is_leaf() && t.requires_grad(); }

// What an operator read, and wrote over.
struct Given {
  int kinds = 0;
  bool is_known = true, is_over = false;  // is_over: it wrote over what was not finite
  bool has_weight = false;                // that holds Inf
};

// Whether it was written over, too; of views that interleave it is not known.
bool overlap(const at::Tensor& t, const at::Tensor& over) {
  if (!t.has_storage() || !over.has_storage()) return false;
  const auto found = at::get_overlap_status(t, over);
  return found == at::MemOverlapStatus::Full || found == at::MemOverlapStatus::Partial;
}

Given given_to(const Operator& op, const std::vector<c10::IValue>& arguments, const std::vector<std::optional<Statistics>>& before) {
  Given found;
  std::vector<at::Tensor> written;
  const auto is_written = [&](size_t i) { return i < op.is_written.size() && op.is_written[i]; };
  for (size_t i = 0; i < arguments.size(); i++)
    if (is_written(i)) std::ranges::copy(tensors_in(arguments[i]), std::back_inserter(written));
  for (size_t n = 0, i = 0; i < arguments.size(); i++) {
    found.kinds |= kinds_of_number(arguments[i]);
    if (i < op.is_result.size() && op.is_result[i]) continue;
    for (const at::Tensor& t : tensors_in(arguments[i])) {
      int kinds = 0;
      if (is_written(i)) {
        const auto& was = n < before.size() ? before[n] : std::nullopt;
        n++;
        found.is_known &= was.has_value();
        if (!was || !(kinds = kinds_of(*was))) continue;
        found.is_over = true;
      } else {
        if (std::ranges::any_of(written, [&](const at::Tensor& over) { return overlap(t, over); })) continue;
        found.is_known &= !may_hold_nonfinite(t);
        if (!(kinds = kinds_of(t))) continue;
      }
      found.kinds |= as_given(op, t, kinds);
      found.has_weight |= (kinds & 2) && is_trained(t);
    }
  }
  return found;
}

// What of a result is not finite on purpose: logarithms of zero, and extremes of nothing.
int kinds_meant(const Operator& op, const std::vector<c10::IValue>& arguments, size_t result) {
  if (op.name == "aten::_ctc_loss") return result == 1 ? 4 : 0;
  if (op.name != "aten::segment_reduce" || arguments.size() < 2 || !arguments[1].isString()) return 0;
  return arguments[1].toStringRef() == "max" ? 4 : arguments[1].toStringRef() == "min" ? 2 : 0;
}

}  // namespace

bool has_overflowed(
    const Operator& op, int wanted, const std::vector<c10::IValue>& arguments,
    const std::vector<std::optional<Statistics>>& before, const std::vector<at::Tensor>& results) try {
  if (!op.makes_data || op.puts_constants || !(wanted & (op.accumulates ? 2 : 1))) return false;
  int kinds = 0;
  bool is_trained_to = false;
  for (size_t i = 0; i < results.size(); i++)
    if (const int found = kinds_of(results[i])) kinds |= found & ~kinds_meant(op, arguments, i), is_trained_to |= is_trained(results[i]);
  if (!kinds) return false;
  const bool is_passed_on = (wanted & 4) != 0, makes_nan = (kinds & 1) != 0;
  const Given given = given_to(op, arguments, before);
  if (given.is_over && op.moves_data) return false;
  // Inf becomes -Inf or NaN: what was not finite is passed on. Infinities may be meant, in a mask or as a distance, and those of a mask
  // and a number have made no NaN before.
  if (given.kinds & number_nan) return false;
  if (given.kinds == number_inf) return makes_nan;
  if (!given.kinds) return given.is_known || is_passed_on;
  if ((given.kinds & ~number_inf) == 4 && makes_nan) return true;
  return is_passed_on && (makes_nan || given.has_weight || is_trained_to);
} catch (const std::exception&) {  // of a dtype that cannot be read
  return false;
}

}  // namespace msctx::glue
