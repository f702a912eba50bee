// Decides, for each call, which algorithm runs: what is named, what a rule requests, what the heuristic of `normal` expects.
#include "msctx/policy.h"

#include <algorithm>
#include <list>

#include "msctx/api.h"
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

std::string brief(const Choice& choice) {
  const ConvText& t = choice.problem;
  const bool is_product = choice.direction == name_of(Direction::matmul);
  std::string words = is_product ? "matrix product of " : t.transposed == "true" ? "transposed convolution of " : "convolution of ";
  words += t.input + (t.weight.empty() ? "" : " with " + t.weight) + " (" + t.dtype;
  const std::pair<const char*, const std::string&> rest[] = {
      {", stride ", t.stride}, {", padding ", t.padding}, {", dilation ", t.dilation}, {", groups ", t.groups}};
  for (const auto& [name, value] : rest)
    if (!value.empty()) words += name + value;  // little is known of what is not ours
  words += ", " + t.layout + ")";
  return t.module.empty() ? words : words + " of " + t.module;
}

// What a policy that records problems requests where nothing else is requested: torch's own path.
constexpr const char* only_recorded = "torch";

// The options under which torch's own path is not taken, where they alone ask.
bool is_invariance(const std::string& asked) { return asked == "thread_invariant" || asked == "batch_invariant"; }
bool is_heuristic(const std::string& asked) { return asked == "normal" || asked == "performance"; }

std::string option_of(const std::string& direction) { return direction == "matmul" ? "matmul_algo" : "conv_" + direction + "_algo"; }
std::string option_of(const Choice& choice) {
  return is_invariance(choice.asked) ? choice.asked : option_of(choice.direction) + '=' + choice.asked;
}

std::string failure(const Choice& choice) {
  return option_of(choice) + (is_invariance(choice.asked) ? " does not hold for the " : " cannot compute the ") + brief(choice);
}

bool exists(const ConvRow& row, const ConvCall& call) { return !row.exists || row.exists(op_of(row.direction, call.transposed)); }

}  // namespace

std::string in_short(const Choice& choice) {
  const std::string rest = "). PyTorch computes it instead; choices() lists all such calls";
  return failure(choice) + " (" + sentence(choice.reasons) + rest;
}

std::string label_of(const std::string& name, const std::string& math) {
  return math == "strict" || math == "float64" || math == "torch" ? name : name + " (" + math + ")";
}

std::atomic<bool> has_policy[places]{}, has_products[places]{};

namespace {

std::mutex& policy_lock = fork_safe_mutex();
std::mutex& decisions_lock = fork_safe_mutex();  // of all policies
constexpr size_t most_policies = 32;
constexpr size_t most_decisions = 4096;  // of one policy, of each of its two maps

std::atomic<int64_t> changes{0};

struct Policies {
  std::shared_ptr<Policy> in_force[places];
  std::list<std::pair<std::string, std::shared_ptr<Policy>>> known;  // by their texts, the last one that was used first
  int64_t times = 0;       // how often one came into force
  int64_t made_under = 0;  // of `changes`
};
Policies& policies = immortal<Policies>();

}  // namespace

void decide_anew() { changes++; }

Taken policy(Place place) {
  const std::lock_guard<std::mutex> guard(policy_lock);
  const int64_t books = books_opened();
  return {policies.in_force[int(place)], books};
}

void set_policy(Place place, const char* wanted, const ConvTable& table) {
  // all on which decisions depend beside the call
  const std::string text = wanted ? std::string(table.isa) + (forks ? " forked " : " ") + wanted : "";
  decltype(policies.known) gone;  // freed without the lock
  std::shared_ptr<Policy> next;
  const std::lock_guard<std::mutex> guard(policy_lock);
  if (wanted) {
    const auto is_it = [&](const auto& one) { return one.first == text; };
    if (const int64_t now = changes; now != policies.made_under) {
      gone.swap(policies.known);
      policies.made_under = now;
    }
    const auto found = std::find_if(policies.known.begin(), policies.known.end(), is_it);
    if (found == policies.known.end())
      policies.known.emplace_front(text, std::make_shared<Policy>(wanted, table));
    else
      policies.known.splice(policies.known.begin(), policies.known, found);
    if (policies.known.size() > most_policies) gone.splice(gone.end(), policies.known, std::prev(policies.known.end()));
    next = policies.known.front().second;
    next->number = ++policies.times;
  }
  has_policy[int(place)].store(wanted != nullptr, std::memory_order_release);
  has_products[int(place)].store(next && next->asks(Direction::matmul), std::memory_order_release);
  policies.in_force[int(place)].swap(next);
}

Policy::Policy(const char* json, const ConvTable& table)
    : PolicyOptions{Json::of(json)}, table_(table), safe_(table.is_computed_again ? algorithm_named(table, safe_algorithm) : nullptr) {
  for (int d = 0; d < directions; d++) asked_[d] = given[option_of(name_of(Direction(d)))].text;
  for (const auto& [_, rule] : given["rules"].members) {
    Rule& made = rules_.emplace_back(Rule{Conditions::of(rule), {}});
    for (const auto& [_, pair] : rule["requested"].members)
      for (int d = 0; d < directions; d++)
        if (pair.at(0).text == name_of(Direction(d))) made.asked[d] = pair.at(1).text;
  }
}

// Rules for convolutions name none for products, and those for products nothing else.
bool Policy::Rule::is_for(Direction direction) const {
  return (direction == Direction::matmul) != asked[int(Direction::matmul)].empty();
}

std::vector<bool> Policy::holding(const ConvText& t, Direction direction) const {
  std::vector<bool> found;
  for (const Rule& rule : rules_) found.push_back(rule.is_for(direction) && rule.conditions->hold_for(t));
  return found;
}

void Policy::note(const std::vector<bool>& held, Direction direction, int64_t books) const {
  for (size_t i = 0; i < rules_.size(); i++)
    if (rules_[i].is_for(direction)) rules_[i].conditions->note(held[i], books);
}

// The first rule that matches and names the direction, else the option.
std::string Policy::asked_for(Direction direction, const std::vector<bool>& held) const {
  for (size_t i = 0; i < rules_.size(); i++)
    if (held[i] && !rules_[i].asked[int(direction)].empty()) return rules_[i].asked[int(direction)];
  return asked_by_option(direction);
}

std::string Policy::asked_by_option(Direction direction) const {
  const std::string& asked = asked_[int(direction)];
  return asked.empty() && thread_invariant ? invariance() : asked;
}

bool Policy::asks(Direction direction) const {
  if (thread_invariant || !asked_[int(direction)].empty()) return true;
  for (const Rule& rule : rules_)
    if (!rule.asked[int(direction)].empty()) return true;
  return false;
}

Decided Policy::known(const std::string& key) {
  const std::lock_guard<std::mutex> guard(decisions_lock);
  if (const auto found = decisions_.find(key); found != decisions_.end()) return found->second;
  const auto old = before_.find(key);
  if (old == before_.end()) return nullptr;
  Decided decision = old->second;
  decisions_.try_emplace(key, decision);
  return decision;
}

// Unless `instead`, the first of two threads wins. Where the latest are many, they become those before: what nobody uses meanwhile goes.
Decided Policy::keep(const std::string& key, Decided decision, bool instead) {
  decltype(decisions_) gone;  // freed without the lock
  const std::lock_guard<std::mutex> guard(decisions_lock);
  if (decisions_.size() >= most_decisions) {
    gone.swap(before_);
    before_.swap(decisions_);
  }
  Decided& kept = decisions_[key];
  if (!kept || instead) kept = std::move(decision);
  return kept;
}

Decided Policy::decide(const ConvCall& call, Direction direction, int threads, int64_t books) {
  if (!asks(direction) && rules_.empty()) return nullptr;
  const std::string key = key_of(call, direction, threads);
  Decided found = known(key);
  if (!found) found = keep(key, make(call, direction, threads, ""));
  note(found->held, direction, books);
  return found->choice ? found : nullptr;
}

Decided Policy::decide_again(const ConvCall& call, Direction direction, int threads, const std::string& why_not_measured) {
  return keep(key_of(call, direction, threads), make(call, direction, threads, why_not_measured), true);
}

std::unique_ptr<Decision> Policy::make(
    const ConvCall& whole, Direction direction, int threads, const std::string& why_not_measured) const {
  const ConvText problem = text_of(whole);
  const ConvCall call = deciding(whole, direction);
  auto decision = std::make_unique<Decision>();
  auto choice = std::make_unique<Choice>();
  choice->direction = name_of(direction);
  choice->problem = problem;
  decision->held = holding(problem, direction);
  choice->asked = asked_for(direction, decision->held);
  if (choice->asked.empty()) return decision;

  if (recording && (choice->asked == only_recorded || choice->asked == "normal" || choice->asked == "thread_invariant")) {
    TuningKey key = tuning_key(call, direction);
    key.table = recording;
    decision->recorded = msctx::record(key, threads);
  }
  choose(call, direction, threads, why_not_measured, *choice, *decision);
  describe(*choice, decision->row, call, op_of(direction, call.transposed), threads);
  if (decision->fell_back) decision->message = complaint(*choice, call, direction);
  decision->choice = record(std::move(choice));
  return decision;
}

void Policy::choose(
    const ConvCall& call, Direction direction, int threads, const std::string& why_not_measured, Choice& choice, Decision& decision) const {
  if (choice.asked == only_recorded) {
    choice.reasons.push_back(decision.recorded ? "recorded, to be measured later" : "not recorded: too many problems are");
  } else if (is_invariance(choice.asked) && allows_torch(call)) {
    choice.reasons.push_back("MKL's strict mode keeps the bits of torch's own path");
  } else if (choice.asked == "performance") {
    tune(call, direction, threads, why_not_measured, choice, decision);
  } else {
    decision.row = named(call, direction, choice);
    decision.fell_back = !decision.row && !choice.reasons.empty();
    if (!decision.row) decision.row = guess(call, direction, choice);
    if (!decision.row && !allows_torch(call)) decision.fell_back = true;  // no bits are promised of torch's own path
  }
}

bool Policy::may_compute(const ConvCall& whole, Direction direction, int threads) const {
  const ConvText problem = text_of(whole);
  const ConvCall call = deciding(whole, direction);
  const auto by = [&](const std::string& asked) {
    if (asked.empty()) return false;
    Choice choice;
    Decision decision;
    choice.asked = asked;
    choose(call, direction, threads, "", choice, decision);
    return decision.row != nullptr;
  };
  for (const Rule& rule : rules_) {
    if (!rule.is_for(direction) || !rule.conditions->hold_for(problem, true)) continue;
    if (by(rule.asked[int(direction)])) return true;
    if (rule.conditions->hold_for(problem)) return false;
  }
  return by(asked_by_option(direction));
}

// The first row of the requested name that can take the call. nullptr: none, and why; or no algorithm is named.
const ConvRow* Policy::named(const ConvCall& call, Direction direction, Choice& choice) const {
  std::string label, reason;  // of the last one that could not
  bool is_known = choice.asked == "normal" || is_invariance(choice.asked);
  for (int i = 0; i < table_.count; i++) {
    const ConvRow& row = table_.rows[i];
    if (row.direction != direction || choice.asked != row.name) continue;
    is_known = true;
    if (!allows_math(row, choice.asked)) {
      if (direction == Direction::matmul) choice.reasons.push_back("allow_fp32_emulation=False allows products in float32 alone");
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
  if (!is_known) choice.reasons.push_back(choice.asked + ": there is no such algorithm on this device");
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
    if (row.direction != direction || choice.asked == row.name || !allows_math(row) || !exists(row, call)) continue;
    std::vector<std::string> why = obstacles(row, call);
    const bool can = why.empty(), is_good = merit_of(row, call) != Merit::last_resort;
    if (can && !is_exact(row, call)) {
      why.push_back(too_inexact(row));
      if (!inexact && is_good) inexact = &row;
    } else if (can) {
      if (const int rank = rank_of(row, call); rank > (best ? rank_of(*best, call) : 0)) best = &row;
      if (!good && is_good) good = &row;
      if (!resort && row.algorithm->fixed_order) resort = &row;
      why.push_back(rank_of(row, call) || !torch_allowed ? "another of ours is expected to be faster"
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
  std::string words = failure(choice) + ":\n";
  std::vector<std::pair<std::string, std::string>> lines;  // the last row of a label takes most
  for (int i = 0; i < table_.count; i++) {
    const ConvRow& row = table_.rows[i];
    if (row.direction != direction || !allows_math(row, choice.asked) || !(exists(row, call) || choice.asked == row.name)) continue;
    std::vector<std::string> why = obstacles(row, call);
    if (why.empty() && is_invariance(choice.asked) && !is_exact(row, call)) why.push_back(too_inexact(row));
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

Decided Policy::refuse(Direction direction, const ConvText& problem, const std::string& reason, int64_t books) {
  const std::vector<bool> held = holding(problem, direction);
  note(held, direction, books);
  auto choice = std::make_unique<Choice>();
  choice->asked = asked_for(direction, held);
  if (choice->asked.empty() || choice->asked == only_recorded) return nullptr;
  if (thread_invariant && is_heuristic(choice->asked)) choice->asked = invariance();
  choice->direction = name_of(direction);
  choice->problem = problem;
  choice->ran = choice->provider = choice->math = "torch";
  choice->reasons.push_back(reason);
  auto decision = std::make_shared<Decision>();
  decision->fell_back = !is_heuristic(choice->asked);
  decision->message = failure(*choice) + ": " + reason + "\n";
  decision->choice = record(std::move(choice));
  const std::string key = "refused " + std::to_string(decision->choice->number);
  if (Decided found = known(key)) return found;
  return keep(key, std::move(decision));
}

}  // namespace msctx
