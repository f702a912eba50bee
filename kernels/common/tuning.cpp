// The tables of tuning results, and the C functions by which Python fills them and takes what is new.
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
using Variant = std::pair<int, int32_t>;  // number of threads, Tuned::Standing
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
constexpr size_t most_recorded = 16384;

std::string entry_of(const TuningKey& key, int threads, const Tuned& result) {
  std::string json = "{";
  members(json, "direction", key.direction, "problem", key.problem, "permissions", key.permissions, "table", key.table);
  members(json, "threads", threads, "ran", result.name, "math", result.math);
  const auto ratio = [&](const char* format, double value) {
    char text[40];
    std::snprintf(text, sizeof text, format, value);
    json += text;
  };
  ratio("\"again\":%.3f,\"votes\":[", result.again);
  if (!result.name.empty()) quote(json, result.name + ' ' + result.math);
  json += "],\"measured\":{";
  for (const Measured& m : result.measured) {
    if (json.back() != '{') json += ',';
    quote(json, m.label);
    ratio(m.ratio > 0 ? ":%.3f" : ":null", m.ratio);
  }
  return json += "}}";
}

// For Python, under the lock.
void add(const std::string& json) {
  if (!tables.fresh.empty()) tables.fresh += ',';
  tables.fresh += json;
}

}  // namespace

const Tuned* tuned(const TuningKey& key, int threads, bool exact_only) {
  const std::lock_guard<std::mutex> guard(tuning_lock);
  const auto found = tables.known.find(key);
  if (found == tables.known.end()) return nullptr;
  const Tuned *exact = nullptr, *other = nullptr;
  for (const auto& [place, result] : found->second)  // in the order of threads, and of standing
    if (threads == any_threads || place.first == threads) (place.second ? exact : other) = &result;
  return exact || exact_only ? exact : other;
}

void learn(const TuningKey& key, int threads, Tuned result) {
  const std::lock_guard<std::mutex> guard(tuning_lock);
  if (tables.known[key].try_emplace({threads, result.standing}, std::move(result)).second) msctx_decide_anew();
}

bool record(const TuningKey& key, int threads, const char* why) {
  const std::string json = entry_of(key, threads, {.math = why, .again = 1.0});
  const std::lock_guard<std::mutex> guard(tuning_lock);
  if (tables.recorded.size() >= most_recorded) return tables.recorded.contains({key, threads});
  if (tables.recorded.emplace(key, threads).second) add(json);
  return true;
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

int msctx_learn(int32_t table, const char* entries) {
  return done([&] {
    for (const auto& [_, e] : Json::of(entries).members) {
      const auto standing = e["exact"].is_on() ? Tuned::same_stamp : Tuned::other_stamp;
      Tuned result{e["ran"].text, e["math"].text, e["source"].text, standing, e["settled"].is_on(), e["again"].number(), {}};
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
