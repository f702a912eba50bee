// `performance`: the algorithm of a tuning result, else what `normal` would take, and whether the problem is still to be measured. The
// tables of these results, and the C functions by which Python fills them and takes what is new.
#include "common/policy.h"

#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

using Clock = std::chrono::steady_clock;
using Variant = std::pair<int, bool>;  // number of threads, whether it is this process's own
std::mutex& tuning_lock = fork_safe_mutex();
struct Tables {
  std::map<TuningKey, std::map<Variant, Tuned>> known;  // never erased from: decisions are made of them without the lock
  std::string fresh;                                  // for Python, as members of a JSON list
  int64_t count = 0;                                  // how many problems were measured
  std::map<int32_t, std::pair<Clock::time_point, Permission>> put_off;  // table → until when nothing is measured, and why
  std::set<std::pair<TuningKey, int>> recorded;
};
Tables& tables = immortal<Tables>();
Permission (*ask)(int32_t table) = nullptr;

std::string entry_of(const TuningKey& key, int threads, const Tuned& result) {
  std::string json = "{";
  members(json, "direction", key.direction, "problem", key.problem, "permissions", key.permissions, "table", key.table);
  members(json, "threads", threads, "ran", result.name, "math", result.math);
  const auto ratio = [&](const char* format, double value) {
    char text[40];
    std::snprintf(text, sizeof text, format, value);
    json += text;
  };
  ratio("\"again\":%.3f,\"measured\":{", result.again);
  for (const Measured& m : result.measured) {
    if (json.back() != '{') json += ',';
    quote(json, m.label);
    ratio(m.ratio > 0 ? ":%.3f" : ":null", m.ratio);
  }
  return json += "}}";
}

std::string comparison(const Measured& m, const std::string& winner) {
  if (m.ratio <= 0) return m.label + ": not measured: no time was left, or no memory";
  char ratio[32];
  std::snprintf(ratio, sizeof ratio, "%.2f", m.ratio);
  return m.label + ": measured at " + ratio + " times the time of " + winner;
}

// For Python, under the lock.
void add(const std::string& json) {
  if (!tables.fresh.empty()) tables.fresh += ',';
  tables.fresh += json;
}

}  // namespace

const Tuned* tuned(const TuningKey& key, int threads) {
  const std::lock_guard<std::mutex> guard(tuning_lock);
  const auto found = tables.known.find(key);
  if (found == tables.known.end()) return nullptr;
  const Tuned* last = nullptr;
  for (const auto& [place, result] : found->second)
    if (threads == any_threads || place.first == threads) last = &result;
  return last;
}

void learn(const TuningKey& key, int threads, Tuned result) {
  const std::lock_guard<std::mutex> guard(tuning_lock);
  if (tables.known[key].try_emplace({threads, !result.is_from_file}, std::move(result)).second) msctx_decide_anew();
}

void record(const TuningKey& key, int threads, const char* why) {
  const std::string json = entry_of(key, threads, {.math = why, .again = 1.0});
  const std::lock_guard<std::mutex> guard(tuning_lock);
  if (tables.recorded.emplace(key, threads).second) add(json);
}

void report(const TuningKey& key, int threads, const Tuned& result) {
  const std::string json = entry_of(key, threads, result);
  const std::lock_guard<std::mutex> guard(tuning_lock);
  add(json);
  tables.count++;
}

Permission permission(int32_t table, bool anew) {
  if (!ask) return Permission::now;
  const auto now = Clock::now();
  if (!anew) {
    const std::lock_guard<std::mutex> guard(tuning_lock);
    const auto put_off = tables.put_off.find(table);
    if (put_off != tables.put_off.end() && now < put_off->second.first) return put_off->second.second;
  }
  const Permission said = ask(table);
  const std::lock_guard<std::mutex> guard(tuning_lock);
  if (said == Permission::later || said == Permission::busy) tables.put_off[table] = {now + std::chrono::seconds(1), said};
  return said;
}

TuningKey Policy::tuning_key(const ConvCall& call, Direction direction) const {
  std::string permissions = "strict";
  if (allow_fp32_emulation) permissions += ", fp32-grade";
  const bool rounds = direction == Direction::matmul ? matmul_allow_tf32 : allow_tf32;
  if (table_.is_computed_again ? rounds : call.allows_tf32) permissions += ", tf32";
  if (call.keeps_weight) permissions += ", kept weight";
  if (call.torch_benchmarks) permissions += ", torch benchmarks";
  if (const double most = most_error(direction); most != 0.0) permissions += ", error " + in_words(most);
  if (workspace_limit >= 0) permissions += ", workspace " + std::to_string(workspace_limit);
  return {tuning, name_of(direction), line_of(text_of(call)), permissions};
}

const Tuned* Policy::tuned_for(const ConvCall& call, Direction direction, int threads) const {
  if (batch_invariant) return nullptr;  // each batch size has a result of its own
  const TuningKey key = tuning_key(call, direction);
  return tuned(key, thread_invariant ? any_threads : threads);
}

void Policy::tune(
    const ConvCall& call, Direction direction, int threads, const std::string& why_not_measured, Choice& choice,
    Made& decision) const {
  const Tuned* known = tuned_for(call, direction, threads);
  std::string why = why_not_measured;
  if (known && follows(*known, call, direction, choice, decision)) return;
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

int msctx_learn(int32_t table, const char* entries) {
  return done([&] {
    for (const auto& [_, e] : Json::of(entries).members) {
      Tuned result{e["ran"].text, e["math"].text, e["source"].text, true, e["again"].number(), {}};
      for (const auto& [label, ratio] : e["measured"].members) result.measured.push_back({label, ratio.number()});
      learn({table, e["direction"].text, e["problem"].text, e["permissions"].text}, int(e["threads"].integer()), std::move(result));
    }
  });
}

char* msctx_measured() try {
  const std::lock_guard<std::mutex> guard(tuning_lock);
  if (tables.fresh.empty()) return nullptr;
  char* text = strdup(('[' + tables.fresh + ']').c_str());
  if (text) tables.fresh.clear();
  return text;
} catch (const std::exception&) {
  return nullptr;
}

int64_t msctx_measurements() {
  const std::lock_guard<std::mutex> guard(tuning_lock);
  return tables.count;
}

void msctx_set_permission(Permission (*wanted)(int32_t table)) { ask = wanted; }

}  // namespace msctx
