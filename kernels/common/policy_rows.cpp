// Which algorithms may take a call, by what they can, by what the options allow and by their errors; and how much is expected of each.
#include <algorithm>
#include <cstring>

#include "common/run.h"
#include "common/policy.h"
#include "msctx/process.h"

namespace msctx {
namespace {

bool is(const ConvRow& row, const char* math) { return std::strcmp(row.algorithm->math, math) == 0; }

}  // namespace

std::string in_words(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

// A product's row whose name is requested may round as that says.
bool Policy::allows_math(const ConvRow& row, const std::string& requested) const {
  const bool is_product = row.direction == Direction::matmul;
  const bool may_round = is_product ? matmul_allow_tf32 || requested == row.name : allow_tf32;
  if (is(row, "tf32")) return may_round && allow_fp32_emulation;  // products of parts, too
  return allow_fp32_emulation || !is(row, "fp32-grade");
}

std::vector<std::string> Policy::obstacles(const ConvRow& row, const ConvCall& call) const {
  const Op op = op_of(row.direction, call.transposed);
  const bool is_product = row.direction == Direction::matmul;
  const ConvAlgorithm& a = *row.algorithm;
  Reasons found;
  a.reasons(call.problem, op, found);
  std::vector<std::string> why;
  for (int i = 0; i < found.count; i++) why.push_back(filled(found.text[i], call));
  if (!why.empty()) return why;
  if (!a.fixed_order && thread_invariant)
    why.push_back("it adds in no fixed order, and " + std::string(invariance()) + "=True requires the same bits");
  if (!a.fixed_order && (deterministic || call.torch_is_deterministic))
    why.push_back(
        std::string("it adds in no fixed order, and ") + (deterministic ? "deterministic=ON requires" : "torch's own flags require") +
        " the same bits");
  size_t bytes = memory_of(a, call.problem, op, 1);  // with one thread, or the number of threads would choose the row
  if (looks_at_all(row) && batch_invariant && is_product)
    why.push_back("the values of other rows decide how it computes one, and batch_invariant=True requires the same bits");
  if (looks_at_all(row)) bytes = std::max(bytes, workspace_of(*safe_, call.problem, op, 1));
  if (!is_product && workspace_limit >= 0 && bytes > size_t(workspace_limit))
    why.push_back(
        "its workspace of " + in_words(int64_t(bytes)) + " is above conv_workspace_limit=" + in_words(workspace_limit));
  return why;
}

bool Policy::looks_at_all(const ConvRow& row) const {
  return safe_ && (row.algorithm->spreads_nonfinite || is(row, "fp32-grade") || is(row, "tf32"));
}

bool Policy::takes_images_apart(const ConvRow& row) const {
  return keeps_images_apart(row.direction) && looks_at_all(row);
}

ConvCall Policy::deciding(const ConvCall& call, Direction direction) const {
  ConvCall found = call;
  if (keeps_images_apart(direction)) found.problem.n = smaller(call.problem.n, 1);
  if (batch_invariant && direction == Direction::matmul) found.keeps_weight = 0;  // what is expected of kept weights depends on rows
  return found;
}

int Policy::threads_for(const ConvRow& row, const ConvProblem& p, Op op, int threads) const {
  const bool is_limited = row.direction != Direction::matmul && workspace_limit >= 0;
  return is_limited && memory_of(*row.algorithm, p, op, threads) > size_t(workspace_limit) ? 1 : threads;
}

// What follows a sum in its call rounds, too: a bias, or alpha, beta and the addition of a product. Activations are not part of a bound.
// 0: none is stated.
double Policy::error_of(const ConvRow& row, const ConvCall& call) {
  const int roundings = row.direction == Direction::matmul ? 3 : row.direction == Direction::fprop ? 1 + call.has_scale + call.has_other : 0;
  const double unit = call.problem.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double error = row.algorithm->error(call.problem, op_of(row.direction, call.transposed));
  return error == 0.0 ? error : error + roundings * unit;
}

// What `normal` and `performance` ask of a row; 16-bit results round more than that by themselves.
bool Policy::is_exact(const ConvRow& row, const ConvCall& call) const {
  const bool half = call.problem.dtype == DType::f16 || call.problem.dtype == DType::bf16;
  return half || error_of(row, call) <= allowed_error(row);
}

double Policy::allowed_error(const ConvRow& row) const {
  const double requested = most_error(row.direction);
  return requested != 0.0 ? requested : is(row, "tf32") ? largest_tf32_error : largest_error;
}

std::string Policy::too_inexact(const ConvRow& row) const {
  const bool is_requested = most_error(row.direction) != 0.0;
  const std::string option = !is_requested ? "" : row.direction == Direction::matmul ? "matmul_max_error=" : "conv_max_error=";
  return "its error bound is above " + option + in_words(allowed_error(row));
}

Merit merit_of(const ConvRow& row, const ConvCall& call) {
  const auto merit = call.keeps_weight && call.channels_last && row.merit_of_kept ? row.merit_of_kept : row.merit;
  return merit ? merit(call.problem, op_of(row.direction, call.transposed)) : Merit::last_resort;
}

int rank_of(const ConvRow& row, const ConvCall& call) {
  const Merit merit = merit_of(row, call);
  const bool copied = call.channels_last && !row.algorithm->reads_channels_last;
  const bool is_finished = call.activation || call.has_scale || call.has_shift || call.has_other;
  switch (merit) {
    case Merit::beats_torch_by_far: return 3;
    case Merit::beats_torch: return copied ? 0 : 2;
    case Merit::beats_torch_channels_first: return call.channels_last ? 0 : 2;
    case Merit::beats_torch_finished: return call.channels_last && is_finished ? 2 : 0;
    case Merit::runner_up: return copied ? 0 : 1;
    default: return 0;
  }
}

std::vector<const ConvRow*> Policy::candidates(const ConvCall& call, Direction direction) const {
  std::vector<const ConvRow*> found;
  for (int i = 0; i < table_.count; i++) {
    const ConvRow& row = table_.rows[i];
    if (row.direction != direction || std::strcmp(row.name, "reference") == 0) continue;
    if (!allows_math(row) || !obstacles(row, call).empty()) continue;
    // The same under another name; or a later row of one label, which a result could not distinguish from the first.
    const auto same = [&](const ConvRow* other) { return other->algorithm == row.algorithm || label_of(*other) == label_of(row); };
    if (std::any_of(found.begin(), found.end(), same)) continue;
    const Op op = op_of(direction, call.transposed);
    // with one thread, or the number of threads would choose the row
    if (is_exact(row, call) && memory_of(*row.algorithm, call.problem, op, 1) <= largest_trial) found.push_back(&row);
  }
  const auto merit = [&](const ConvRow* row) { return std::pair(rank_of(*row, call), merit_of(*row, call)); };
  std::stable_sort(found.begin(), found.end(), [&](const ConvRow* a, const ConvRow* b) { return merit(a) > merit(b); });
  return found;
}

}  // namespace msctx
