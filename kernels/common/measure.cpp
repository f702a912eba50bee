// Measurements of `performance`: kept for the life of the process.
#include "msctx/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "msctx/process.h"

namespace msctx {
namespace {

constexpr double gain = 1.03;     // torch's own path is left only for a gain that is no noise
constexpr double hopeless = 3.0;  // slower than the best by this factor at first: not measured again
constexpr int rounds = 5;
constexpr std::chrono::seconds budget{2};  // for one problem
constexpr double never = 1e30;  // the time of what was not run

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  try {
    body();
  } catch (const std::exception&) {  // out of memory: torch's own path may still do
    return never;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Result {
  const ConvRow* row;  // null: torch's own path
  std::vector<std::string> reasons;
};

struct Contender {
  const ConvRow* row;
  std::function<void()> run;
  double best;
};

std::string comparison(const Contender& c, const Contender& winner) {
  const auto name = [](const ConvRow* row) { return row ? label_of(*row) : std::string("torch"); };
  if (c.best >= never) return name(c.row) + ": not measured: no time was left, or no memory";
  char ratio[32];
  std::snprintf(ratio, sizeof ratio, "%.2f", c.best / winner.best);
  return name(c.row) + ": measured at " + ratio + " times the time of " + name(winner.row);
}

Result measure(const Policy& policy, const ConvCall& call, Direction direction, const Run& run) {
  std::vector<Contender> contenders;
  const auto add = [&](const ConvRow* row) { contenders.push_back({row, [&run, row] { run(row); }, never}); };
  add(nullptr);
  for (const ConvRow* row : policy.candidates(call, direction)) add(row);
  const auto start = std::chrono::steady_clock::now();
  const auto is_time_left = [&] { return std::chrono::steady_clock::now() - start < budget; };
  double best = never;
  for (Contender& c : contenders) {
    if (best < never && !is_time_left()) continue;  // the table has the likely ones first
    c.best = seconds(c.run);                        // the first run warms up
    if (c.best < hopeless * best) c.best = std::min(c.best, seconds(c.run));
    best = std::min(best, c.best);
  }
  for (int round = 0; round < rounds && is_time_left(); round++)
    for (Contender& c : contenders)
      if (c.best < hopeless * best) c.best = std::min(c.best, seconds(c.run));

  const Contender* winner = nullptr;
  for (const Contender& c : contenders)
    if (winner == nullptr || c.best * (winner->row ? 1.0 : gain) < winner->best) winner = &c;
  Result result{winner ? winner->row : nullptr, {}};
  for (const Contender& c : contenders)
    if (&c != winner) result.reasons.push_back(comparison(c, *winner));
  return result;
}

std::mutex& measuring = fork_safe_mutex(false);  // held while torch and the kernels run: only ever tried, never waited for
std::mutex& lock = fork_safe_mutex();
std::map<std::string, Result>& results() {
  static auto* all = new std::map<std::string, Result>;
  return *all;
}

const Result* known(const std::string& key) {
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = results().find(key);
  return found == results().end() ? nullptr : &found->second;
}

}  // namespace

const Decision* measured(
    Policy& policy, const ConvCall& call, const Decision& guessed, Direction direction, int threads, const Run& run) {
  ConvCall problem = call;
  problem.module = nullptr;
  std::string key(reinterpret_cast<const char*>(&problem), sizeof problem);
  key += std::to_string(int(direction)) + policy.table().isa + policy.constraints();
  key += " " + std::to_string(threads);
  const Result* found = known(key);
  if (!found) {
    thread_local bool here = false;  // torch's own path may lead back, through another library's kernel
    if (here || forked) return &guessed;
    const std::unique_lock<std::mutex> mine(measuring, std::try_to_lock);
    if (!mine.owns_lock()) return &guessed;
    here = true;
    Result result = measure(policy, call, direction, run);
    here = false;
    const std::lock_guard<std::mutex> guard(lock);
    found = &results().emplace(key, std::move(result)).first->second;
  }
  return policy.decide_measured(call, direction, found->row, found->reasons);
}

}  // namespace msctx
