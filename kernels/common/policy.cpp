// Decides, for each call, which algorithm runs: what is named, what a rule requests, what the heuristic of `normal` expects.
#include "common/policy.h"

#include <algorithm>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

std::string key_of(const ConvCall& call, Direction direction, int threads) {
  std::string key(reinterpret_cast<const char*>(&call), sizeof call);
  return key.append(reinterpret_cast<const char*>(&threads), sizeof threads) += char(direction);
}

std::string sentence(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : "; ") + part;
  return joined;
}

// What a policy that records problems requests where nothing else is requested: torch's own path.
constexpr const char* only_recorded = "torch";

constexpr const char* options[directions] = {"conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "matmul_algo"};

// The options under which torch's own path is not taken, where they alone ask.
bool is_invariance(const std::string& requested) { return requested == "thread_invariant" || requested == "batch_invariant"; }
bool is_heuristic(const std::string& requested) { return requested == "normal" || requested == "performance"; }

// `by_option`: what the option of the direction names; a rule named anything else.
std::string failure(const Choice& choice, const std::string& by_option) {
  const std::string of_module = choice.problem.module.empty() ? "" : " in module " + choice.problem.module;
  const std::string words = (choice.direction == Direction::matmul ? "matmul " : "convolution ") + line_of(choice.problem) + of_module;
  if (is_invariance(choice.requested)) return choice.requested + " does not hold for the " + words;
  const char* rules = choice.direction == Direction::matmul ? "matmul_algo_rules: " : "conv_algo_rules: ";
  return (choice.requested == by_option ? std::string(options[int(choice.direction)]) + '=' : rules) + choice.requested + " cannot compute the " + words;
}

bool exists(const ConvRow& row, const ConvCall& call) { return !row.exists || row.exists(op_of(row.direction, call.transposed)); }

}  // namespace

std::string label_of(const std::string& name, const std::string& math) {
  return math == "strict" || math == "float64" || math == "torch" ? name : name + " (" + math + ")";
}

namespace {

std::mutex& policy_lock = fork_safe_mutex();
std::mutex& decisions_lock = fork_safe_mutex();  // of all policies
constexpr size_t most_policies = 32;
constexpr size_t most_decisions = 8192;  // of one policy

std::atomic<int64_t> changes{0};
std::atomic<int32_t> in_force[places]{};

struct Policies {
  std::shared_ptr<Policy> in_force[places];
  std::unordered_map<std::string, std::shared_ptr<Policy>> known;  // by their texts
  int64_t times = 0;       // how often one came into force
  int64_t made_under = 0;  // of `changes`
};
Policies& policies = immortal<Policies>();

Fallback fallback_of(const std::string& name) {
  return name == "error" ? Fallback::error : name == "strict" ? Fallback::strict : name == "silent" ? Fallback::silent : Fallback::warn;
}

}  // namespace

Policy::Policy(const Json& given, const ConvTable& table)
    : Taken{
          .number = 0, .place = {}, .requests = 0, .fallback = fallback_of(given["fallback"].text), .thread_invariant = given["thread_invariant"].is_on(),
          .batch_invariant = given["batch_invariant"].is_on(), .torch_keeps_products = given["torch_keeps_products"].is_on(),
          .allow_tf32 = given["conv_allow_tf32"].is_on(), .allow_fp32_emulation = given["allow_fp32_emulation"].is_on(),
          .frozen_weights = given["frozen_weights"].is_on()},
      given(given), table_(table), safe_(table.is_computed_again ? algorithm_named(table, safe_algorithm) : nullptr) {
  for (int d = 0; d < directions; d++) requested_[d] = given[options[d]].text;
  for (const auto& [_, rule] : given["rules"].members) {
    Rule& made = rules_.emplace_back(Rule{Conditions(rule), {}});
    for (const auto& [_, pair] : rule["requested"].members)
      for (int d = 0; d < directions; d++)
        if (pair.at(0).text == name_of(Direction(d))) made.requested[d] = pair.at(1).text;
  }
  for (int d = 0; d < directions; d++) {
    bool asks = thread_invariant || !requested_[d].empty();
    for (const Rule& rule : rules_) asks = asks || !rule.requested[d].empty();
    requests |= int32_t(asks) << d;
  }
  requests |= 1 << directions;
}

// Rules for convolutions name none for products, and those for products nothing else.
bool Policy::Rule::is_for(Direction direction) const {
  return (direction == Direction::matmul) != requested[int(Direction::matmul)].empty();
}

std::vector<bool> Policy::holding(const ConvText& t, Direction direction) const {
  std::vector<bool> found;
  for (const Rule& rule : rules_) found.push_back(rule.is_for(direction) && rule.conditions.hold_for(t));
  return found;
}

void Policy::note(const std::vector<bool>& held, Direction direction) const {
  for (size_t i = 0; i < rules_.size(); i++)
    if (rules_[i].is_for(direction)) rules_[i].conditions.met().compared++, rules_[i].conditions.met().held += held[i];
}

// The first rule that matches and names the direction, else the option.
std::string Policy::requested_for(Direction direction, const std::vector<bool>& held) const {
  for (size_t i = 0; i < rules_.size(); i++)
    if (held[i] && !rules_[i].requested[int(direction)].empty()) return rules_[i].requested[int(direction)];
  return requested_by_option(direction);
}

std::string Policy::requested_by_option(Direction direction) const {
  const std::string& requested = requested_[int(direction)];
  return requested.empty() && thread_invariant ? invariance() : requested;
}

Decided Policy::known(const std::string& key) {
  const std::lock_guard<std::mutex> guard(decisions_lock);
  const auto found = decisions_.find(key);
  return found == decisions_.end() ? nullptr : found->second;
}

// Unless `instead`, the first of two threads wins. Where they are many, all go: those that are still met are decided once more.
Decided Policy::keep(const std::string& key, Decided decision, bool instead) {
  decltype(decisions_) gone;  // freed without the lock
  const std::lock_guard<std::mutex> guard(decisions_lock);
  if (decisions_.size() >= most_decisions) gone.swap(decisions_);
  Decided& kept = decisions_[key];
  if (!kept || instead) kept = std::move(decision);
  return kept;
}

Decided Policy::decide(const ConvCall& call, Direction direction, int threads) {
  if (!asks(direction) && rules_.empty()) return nullptr;
  const std::string key = key_of(call, direction, threads);
  Decided found = known(key);
  if (!found) found = keep(key, make(call, direction, threads, ""));
  note(found->held, direction);
  return found->choice ? found : nullptr;
}

Decided Policy::decide_again(const ConvCall& call, Direction direction, int threads, const std::string& why_not_measured) {
  return keep(key_of(call, direction, threads), make(call, direction, threads, why_not_measured), true);
}

std::unique_ptr<Made> Policy::make(
    const ConvCall& whole, Direction direction, int threads, const std::string& why_not_measured) const {
  const ConvCall call = deciding(whole, direction);
  auto decision = std::make_unique<Made>();
  Choice choice;
  choice.direction = direction;
  choice.problem = text_of(whole);
  decision->held = holding(choice.problem, direction);
  choice.requested = requested_for(direction, decision->held);
  if (choice.requested.empty()) return decision;

  if (recording && (choice.requested == only_recorded || choice.requested == "normal" || choice.requested == "thread_invariant")) {
    TuningKey key = tuning_key(call, direction);
    key.table = recording;
    record(key, threads);
  }
  const bool fell_back = choose(call, direction, threads, why_not_measured, choice, *decision);
  describe(choice, decision->row, call, op_of(direction, call.transposed), threads);
  complete(*decision, choice, fell_back ? complaint(choice, call, direction) : "");
  return decision;
}

// With `error`, an algorithm that was named does not run.
void Policy::complete(Made& decision, const Choice& choice, const std::string& error) const {
  if (!error.empty()) {
    decision.warning_text = failure(choice, requested_[int(choice.direction)]) + " (" + sentence(choice.reasons) +
                            "). PyTorch computes it instead; choices() lists all such calls";
    decision.error_text = error;
    decision.warning = decision.warning_text.c_str(), decision.error = decision.error_text.c_str();
  }
  decision.is_beside_load = !choice.reasons.empty() && choice.reasons.back() == beside_load;
  decision.choice = logged(choice);
  decision.ran = decision.row ? decision.row->name : "torch";
}

bool Policy::choose(
    const ConvCall& call, Direction direction, int threads, const std::string& why_not_measured, Choice& choice, Made& decision) const {
  if (choice.requested == only_recorded) {
    choice.reasons.push_back("recorded, to be measured later");
  } else if (is_invariance(choice.requested) && allows_torch(call)) {
    choice.reasons.push_back("MKL's strict mode keeps the bits of PyTorch's path");
  } else if (choice.requested == "performance") {
    tune(call, direction, threads, why_not_measured, choice, decision);
  } else {
    decision.row = named(call, direction, choice);
    const bool fell_back = !decision.row && !choice.reasons.empty();
    if (!decision.row) decision.row = guess(call, direction, choice);
    return fell_back || (!decision.row && !allows_torch(call));  // no bits are promised of torch's own path
  }
  return false;
}

// The first row of the requested name that can take the call. nullptr: none, and why; or no algorithm is named.
const ConvRow* Policy::named(const ConvCall& call, Direction direction, Choice& choice) const {
  std::string label, reason;  // of the last one that could not
  bool is_known = choice.requested == "normal" || is_invariance(choice.requested);
  for (int i = 0; i < table_.count; i++) {
    const ConvRow& row = table_.rows[i];
    if (row.direction != direction || choice.requested != row.name) continue;
    is_known = true;
    if (!allows_math(row, choice.requested)) {
      if (direction == Direction::matmul) choice.reasons.push_back("allow_fp32_emulation=False allows matmuls only in float32");
      continue;  // a convolution's name has a row in float32, too
    }
    const std::vector<std::string> why = obstacles(row, call);
    // The rows after it take more problems in the same arithmetic, or cannot take this one for the same reason: one is enough.
    if (!choice.reasons.empty() && (label == label_of(row) || reason == sentence(why))) choice.reasons.pop_back();
    if (why.empty()) return &row;
    label = label_of(row);
    reason = sentence(why);
    choice.reasons.push_back(label + ": " + reason);
  }
  if (!is_known) choice.reasons.push_back(choice.requested + ": there is no such algorithm on this device");
  return nullptr;
}

// What `normal` takes: the first row of those from which it expects most, if that is anything; where torch's own path is not allowed,
// the first good one of ours. On other devices it is torch's own path.
const ConvRow* Policy::guess(const ConvCall& call, Direction direction, Choice& choice) const {
  if (!table_.is_computed_again) {
    if (choice.reasons.empty()) choice.reasons.push_back("cuDNN's heuristic chooses, in torch's own path");
    return nullptr;
  }
  const bool torch_allowed = allows_torch(call);
  const ConvRow *best = nullptr, *good = nullptr, *inexact = nullptr, *resort = nullptr;  // all but the first where torch is not allowed
  std::vector<std::pair<const ConvRow*, std::string>> passed;
  for (int i = 0; i < table_.count; i++) {
    const ConvRow& row = table_.rows[i];
    if (row.direction != direction || choice.requested == row.name || !allows_math(row) || !exists(row, call)) continue;
    std::vector<std::string> why = obstacles(row, call);
    const bool can = why.empty(), is_good = merit_of(row, call) != Merit::last_resort;
    if (can && !is_exact(row, call)) {
      why.push_back(too_inexact(row));
      if (!inexact && is_good) inexact = &row;
    } else if (can) {
      if (const int rank = rank_of(row, call); rank > (best ? rank_of(*best, call) : 0)) best = &row;
      if (!good && is_good) good = &row;
      if (!resort && row.algorithm->fixed_order) resort = &row;
      why.push_back(rank_of(row, call) || !torch_allowed ? "another algorithm of msctx is expected to be faster"
                                                         : "torch's own path is expected to be as fast");
    }
    passed.emplace_back(&row, sentence(why));
  }
  if (!best && !torch_allowed) best = good ? good : inexact && most_error(direction) == 0.0 ? inexact : resort;
  if (!best && !choice.reasons.empty()) return nullptr;
  std::string last;  // of two rows of one label that stand side by side the later one takes more
  for (const auto& [row, why] : passed) {
    if (row == best) break;
    if (last == label_of(*row)) choice.reasons.pop_back();
    last = label_of(*row);
    choice.reasons.push_back(last + ": " + why);
  }
  return best;
}

void Policy::describe(Choice& choice, const ConvRow* row, const ConvCall& call, Op op, int threads) const {
  if (!row) {
    choice.ran = choice.provider = choice.math = "torch";
    return;
  }
  choice.ran = row->name;
  choice.provider = row->algorithm->provider;
  choice.math = row->algorithm->math;
  choice.error = error_of(*row, call);
  const int used = threads_for(*row, call.problem, op, threads);
  choice.workspace = int64_t(memory_of(*row->algorithm, call.problem, op, used));
}

// Every row of the direction, with all of its reasons.
std::string Policy::complaint(const Choice& choice, const ConvCall& call, Direction direction) const {
  std::string words = failure(choice, requested_[int(direction)]) + ":\n";
  std::vector<std::pair<std::string, std::string>> lines;  // the last row of a label takes most
  for (int i = 0; i < table_.count; i++) {
    const ConvRow& row = table_.rows[i];
    if (row.direction != direction || !allows_math(row, choice.requested) || !(exists(row, call) || choice.requested == row.name)) continue;
    std::vector<std::string> why = obstacles(row, call);
    if (why.empty() && is_invariance(choice.requested) && !is_exact(row, call)) why.push_back(too_inexact(row));
    const std::string label = label_of(row), text = why.empty() ? "could compute it" : sentence(why);
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.first == label; });
    if (same == lines.end())
      lines.emplace_back(label, text);
    else if (same->second != "could compute it")
      same->second = text;
  }
  for (const auto& [label, text] : lines) words += "  " + label + ": " + text + "\n";
  return words;
}

Decided Policy::refuse(Direction direction, const ConvText& problem, const std::string& reason) {
  const std::vector<bool> held = holding(problem, direction);
  note(held, direction);
  Choice choice;
  choice.requested = requested_for(direction, held);
  if (choice.requested.empty() || choice.requested == only_recorded) return nullptr;
  if (thread_invariant && is_heuristic(choice.requested)) choice.requested = invariance();
  choice.direction = direction;
  choice.problem = problem;
  choice.ran = choice.provider = choice.math = "torch";
  choice.reasons.push_back(reason);
  auto decision = std::make_shared<Made>();
  complete(*decision, choice, is_heuristic(choice.requested) ? "" : failure(choice, requested_[int(direction)]) + ": " + reason + "\n");
  const std::string key = "refused " + *decision->choice;
  if (Decided found = known(key)) return found;
  return keep(key, std::move(decision));
}

bool Policy::compute(
    const ConvRow& row, const ConvProblem& p, Op op, const ConvTensors& t, const Kept* kept, const Memory& memory,
    const Parallel& parallel) const {
  const bool apart = takes_images_apart(row);
  ConvProblem at_once = p;
  if (apart) at_once.n = smaller(p.n, 1);
  const bool all = threads_for(row, at_once, op, parallel.threads) == parallel.threads;
  return conv_run(table_, *row.algorithm, p, op, t, kept, memory, all ? parallel : serial(), apart);
}

void msctx_decide_anew() { changes++; }

int msctx_in_force(Place place) { return in_force[int(place)].load(std::memory_order_relaxed); }

int msctx_put_in_force(Place place, const char* wanted, const ConvTable* table) {
  return done([&] {
    // all on which decisions depend beside the call
    const std::string text = wanted ? std::string(table->isa) + (forks ? " forked " : " ") + wanted : "";
    decltype(policies.known) gone;  // freed without the lock
    std::shared_ptr<Policy> next;
    const std::lock_guard<std::mutex> guard(policy_lock);
    if (wanted) {
      const int64_t now = changes;
      if (now != policies.made_under || policies.known.size() >= most_policies) gone.swap(policies.known);
      policies.made_under = now;
      std::shared_ptr<Policy>& known = policies.known[text];
      if (!known) known = std::make_shared<Policy>(Json::of(wanted), *table);
      next = known;
      next->number = ++policies.times;
      next->place = place;
    }
    in_force[int(place)].store(next ? next->requests : 0, std::memory_order_release);
    policies.in_force[int(place)].swap(next);
  });
}

int msctx_take(Place place, const Taken** taken) {
  return done([&] {
    const std::lock_guard<std::mutex> guard(policy_lock);
    const std::shared_ptr<Policy>& policy = policies.in_force[int(place)];
    *taken = policy ? new Call{*policy, policy, books_opened()} : nullptr;
  });
}

void msctx_give_back(const Taken* taken) { delete &call_of(taken); }

int msctx_decide(const Taken* taken, const ConvCall* given, Direction direction, int threads, int again, const Decision** decision) {
  return done([&] {
    Call& call = call_of(taken);
    Decided& decided = call.decided[int(direction)];
    decided = again ? call.policy->decide_again(*given, direction, threads, "") : call.policy->decide(*given, direction, threads);
    if (again) msctx_decide_anew();
    *decision = decided.get();
  });
}

int msctx_refuse(
    const Taken* taken, Direction direction, const ConvCall* given, const Words* words, const char* reason, const Decision** decision) {
  return done([&] {
    Call& call = call_of(taken);
    ConvText text;
    if (given) {
      text = text_of(*given);
    } else {
      text.input = words->input, text.weight = words->weight, text.dtype = words->dtype, text.layout = words->layout;
      text.transposed = "false";
    }
    Decided& decided = call.decided[int(direction)];
    decided = call.policy->refuse(direction, text, reason);
    *decision = decided.get();
  });
}

int msctx_compute(
    const Taken* taken, const ConvRow* row, const ConvProblem* p, Op op, const ConvTensors* t, const Kept* kept, const Memory* memory,
    const Parallel* parallel) {
  bool again = false;
  return done([&] { again = call_of(taken).policy->compute(*row, *p, op, *t, kept, *memory, *parallel); }) ? again : -1;
}

void msctx_count(const Taken* taken, const Decision* decision, int weights_kept, int weights_prepared, int computed_again) {
  done([&] {  // without memory it is not counted
    count(static_cast<const Made*>(decision)->choice, {1, weights_kept, weights_prepared, computed_again}, call_of(taken).books);
  });
}

}  // namespace msctx
