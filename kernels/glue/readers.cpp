#include "glue/readers.h"

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include "glue/running.h"
#include "msctx/api.h"
#include "msctx/process.h"

namespace msctx::glue {

std::atomic<int64_t> dropped{0};

namespace {

constexpr size_t most = 1 << 16;  // rows that wait for Python

std::mutex& readers_lock = fork_safe_mutex();
std::atomic<int64_t> latest{0};  // version of the config
std::atomic<PythonFunction> sink{nullptr}, chooser{nullptr};  // Python's, for the life of the process
struct State {
  std::shared_ptr<const Config> config;
  int64_t process = forks;
  std::map<int64_t, std::deque<Row>> waiting;  // of each reader
  std::map<std::tuple<int64_t, const Operator*, const char*>, bool> chosen;
};
// The lock is held. What waits in a process that forks is its own: the child has none of it.
State& state() {
  static State& all = immortal<State>();
  if (all.process != forks) {
    for (auto& queue : all.waiting) queue.second.clear();
    all.process = forks;
  }
  return all;
}

}  // namespace

Config::Config(const Json& given) {
  for (const auto& [_, reader] : given.members) {
    const Reader& one = readers.emplace_back(Reader{reader});
    overflow |= one.overflow != 0, errors |= one.errors, recent |= one.recent, running |= one.running, lines |= one.lines;
  }
}

void set_readers(std::shared_ptr<const Config> given, PythonFunction take, PythonFunction choose) {
  const std::lock_guard<std::mutex> guard(readers_lock);
  std::map<int64_t, std::deque<Row>> waiting;  // what waits for those that have gone, goes
  if (given)
    for (const Reader& one : given->readers) waiting[one.reader] = std::move(state().waiting[one.reader]);
  state().waiting = std::move(waiting);
  state().chosen.clear();
  state().config = std::move(given);
  sink = take;
  chooser = choose;
  latest++;
}

void update(std::shared_ptr<const Config>& known, int64_t& version) {
  const int64_t now = latest.load(std::memory_order_acquire);
  if (version == now) return;
  const std::lock_guard<std::mutex> guard(readers_lock);
  known = state().config;
  version = now;
}

// Python's answer holds for this operator in this module, or, with `ask_again`, for this one call.
constexpr long chosen = 1, ask_again = 2;

bool is_chosen(const Reader& by, const Row& row) {
  if (!by.chooses) return true;
  const std::tuple key{by.reader, row.op, row.module};
  {
    const std::lock_guard<std::mutex> guard(readers_lock);
    if (const auto found = state().chosen.find(key); found != state().chosen.end()) return found->second;
  }
  const auto module = reinterpret_cast<unsigned long long>(row.module);
  const long answer =
      call_python(chooser, chosen, "(LssLK)", (long long)by.reader, row.op->name.c_str(), row.module, (long long)row.id, module);
  if (answer & ask_again) return answer & chosen;
  const std::lock_guard<std::mutex> guard(readers_lock);
  return state().chosen[key] = answer & chosen;
}

void hand_over(const Reader& to, Row&& row, size_t enough_of_them) {
  size_t waiting;
  {
    const std::lock_guard<std::mutex> guard(readers_lock);
    const auto queue = state().waiting.find(to.reader);
    if (queue == state().waiting.end()) return;  // it has gone meanwhile
    auto& all = queue->second;
    all.push_back(std::move(row));
    if (all.size() > most) all.pop_front(), dropped++;
    waiting = all.size();
  }
  if (waiting >= enough_of_them) call_python(sink.load(), 0, "(L)", (long long)to.reader);
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// In a forked process: its parent's observers do not read what it computes.
MSCTX_API void msctx_collect_nothing() {
  const std::lock_guard<std::mutex> guard(readers_lock);
  state().config = nullptr;
  latest++;
}

// The rows that wait for a reader; 0: the last operators, which stay. As JSON, to be freed.
MSCTX_API char* msctx_collected(int64_t reader) try {
  if (!reader) return strdup(recent_as_json().c_str());
  std::deque<Row> taken;
  {
    const std::lock_guard<std::mutex> guard(readers_lock);
    if (const auto queue = state().waiting.find(reader); queue != state().waiting.end()) taken.swap(queue->second);
  }
  return strdup(json_of(taken).c_str());
} catch (const std::exception&) {
  return nullptr;
}

// Rows that nobody took in time.
MSCTX_API int64_t msctx_collect_dropped() { return dropped.exchange(0); }
