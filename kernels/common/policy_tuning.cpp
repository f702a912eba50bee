// `performance`: the algorithm of a tuning result, else what `normal` would take, and whether the problem is still to be measured.

#include "common/policy.h"
#include "msctx/process.h"

namespace msctx {
namespace {

std::string comparison(const Measured& m, const std::string& winner) {
  if (m.ratio <= 0) return m.label + ": not measured: no time was left, or no memory";
  char ratio[32];
  std::snprintf(ratio, sizeof ratio, "%.2f", m.ratio);
  return m.label + ": measured at " + ratio + " times the time of " + winner;
}

}  // namespace

TuningKey Policy::tuning_key(const ConvCall& call, Direction direction) const {
  std::string permissions = "strict";
  if (allow_fp32_emulation) permissions += ", fp32-grade";
  const bool rounds = direction == Direction::matmul ? matmul_allow_tf32 : allow_tf32;
  if (table_.is_computed_again ? rounds : call.allows_tf32) permissions += ", tf32";
  if (call.torch_benchmarks) permissions += ", torch benchmarks";
  if (const double most = most_error(direction); most != 0.0) permissions += ", error " + in_words(most);
  if (workspace_limit >= 0) permissions += ", workspace " + std::to_string(workspace_limit);
  return {tuning, name_of(direction), line_of(text_of(call)), permissions};
}

const Tuned* Policy::tuned_for(const ConvCall& call, Direction direction, int threads) const {
  if (batch_invariant) return nullptr;  // each batch size has a result of its own
  const TuningKey key = tuning_key(call, direction);
  return tuned(key, thread_invariant ? any_threads : threads, deterministic);
}

void Policy::tune(
    const ConvCall& call, Direction direction, int threads, const std::string& why_not_measured, Choice& choice,
    Made& decision) const {
  const Tuned* known = tuned_for(call, direction, threads);
  std::string why = why_not_measured;
  if (known && follows(*known, call, direction, choice, decision)) {
    decision.to_measure = !known->is_settled && (why.empty() || why == beside_load) && !deterministic && !thread_invariant && !forks;
    if (!known->is_settled && !why.empty()) choice.reasons.push_back(why);
    return;
  }
  if (why == beside_load) {
    decision.to_measure = true;
    choice.reasons = {why};
    return;
  }
  if (known) why = choice.reasons.front();
  else if (deterministic) why = "nothing is measured under deterministic=ON, and no entry of the tuning file with the same stamp has it";
  else if (batch_invariant) why = "under batch_invariant=True the choice must not depend on the size of the batch";
  else if (thread_invariant) why = "nothing is measured under thread_invariant=True, and the tuning file does not have it";
  else if (why.empty() && forks) why = "nothing is measured in a forked worker, and the tuning file does not have it";
  decision.to_measure = why.empty();
  choice.reasons.clear();
  decision.row = guess(call, direction, choice);
  if (why.empty()) why = "not measured yet";
  choice.reasons.insert(choice.reasons.begin(), "chosen as by normal: " + why);
}

// Takes the row of a result where this policy may; else adds the reason why not.
bool Policy::follows(
    const Tuned& known, const ConvCall& call, Direction direction, Choice& choice, Made& decision) const {
  const std::string label = label_of(known.name, known.math);
  const std::string refused = known.source + ": " + label + ", which ";
  if (known.name != "torch") {
    for (const ConvRow* row : candidates(call, direction))  // a file may contain anything
      if (known.name == row->name && known.math == row->algorithm->math) decision.row = row;
    if (!decision.row) {
      choice.reasons.push_back(refused + "performance may not take here");
      return false;
    }
  } else if (!allows_torch(call)) {
    choice.reasons.push_back(refused + "promises no bits, and thread_invariant=True requires them");
    return false;
  }
  choice.reasons.push_back(known.source);
  for (const Measured& m : known.measured)
    if (m.label != label) choice.reasons.push_back(comparison(m, label));
  choice.reasons.push_back(comparison({"torch again, in the same rounds", known.again}, "torch"));
  return true;
}

}  // namespace msctx
