// Who reads what the collector sees, the rows that wait for each, and what runs and has run in the process.

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "glue/observed.h"
#include "glue/tensors.h"
#include "msctx/interface.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

constexpr size_t most_waiting = 1 << 16;  // rows that wait for Python
constexpr int64_t most_recent = 1024;

std::mutex& readers_lock = fork_safe_mutex();
std::atomic<int64_t> latest{0};  // version of the config
std::atomic<PythonFunction> sink{nullptr}, chooser{nullptr};  // Python's, for the life of the process
struct State {
  std::shared_ptr<const Config> config;
  std::map<int64_t, std::deque<Row>> waiting;  // of each reader
  std::map<std::tuple<int64_t, const Operator*, const char*>, bool> chosen;
  std::array<Row, most_recent> recent;  // the last operators, in a ring
  int64_t recent_count = 0;
  std::map<uint64_t, Running> running;  // by thread
};
State& state = immortal<State>();  // the lock is held

// Such as Float[8x8] Long[8].
void write_shapes(std::string& text, at::ArrayRef<c10::IValue> arguments) {
  int tensors = 16;
  int64_t sizes = 24;
  each_tensor(arguments, [&](const at::Tensor& t) {
    if (tensors < 0 || sizes < 0) return;
    if (!text.empty()) text += ' ';
    if (--tensors < 0 || (!t.is_nested() && (sizes -= t.dim()) < 0)) text += "...";
    else ((text += c10::toString(t.scalar_type())) += '[') += (t.is_nested() ? "nested" : joined(t.sizes())) + "]";
  });
}

template <class Rows, class Write>
char* json_of(const Rows& rows, const Write& write) {
  std::string json = "[";
  for (const auto& row : rows) json += write(row) + ",";
  if (json.back() == ',') json.pop_back();
  return strdup((json + "]").c_str());
}

}  // namespace

std::atomic<int64_t> dropped{0};

Config::Config(const Json& given) {
  for (const auto& [_, reader] : given.members) {
    const Reader& one = readers.emplace_back(Reader{reader});
    overflow |= one.overflow != 0, errors |= one.errors, recent |= one.recent;
    running |= one.running, excepts |= one.excepts, lines |= one.lines;
  }
}

void set_readers(std::shared_ptr<const Config> given, PythonFunction take, PythonFunction choose) {
  const std::lock_guard<std::mutex> guard(readers_lock);
  std::map<int64_t, std::deque<Row>> waiting;  // what waits for those that have gone, goes
  if (given)
    for (const Reader& one : given->readers) waiting[one.reader] = std::move(state.waiting[one.reader]);
  state.waiting = std::move(waiting);
  state.chosen.clear();
  if (!given || !given->running) state.running.clear();  // a forked process has none of its parent's threads
  state.config = std::move(given);
  sink = take;
  chooser = choose;
  latest++;
}

void update(std::shared_ptr<const Config>& known, int64_t& version) {
  const int64_t now = latest.load(std::memory_order_acquire);
  if (version == now) return;
  const std::lock_guard<std::mutex> guard(readers_lock);
  known = state.config;
  version = now;
}

// Python's answer holds for this operator in this module, or, with `ask_again`, for this one call.
constexpr long chosen = 1, ask_again = 2;

bool is_chosen(const Reader& by, const Operator& op, const char* module, int64_t id) {
  if (!by.chooses) return true;
  const std::tuple key{by.reader, &op, module};
  {
    const std::lock_guard<std::mutex> guard(readers_lock);
    if (const auto found = state.chosen.find(key); found != state.chosen.end()) return found->second;
  }
  const auto number = reinterpret_cast<unsigned long long>(module);
  const long answer = call_python(chooser, chosen, "(LssLK)", (long long)by.reader, op.name.c_str(), module, (long long)id, number);
  if (answer & ask_again) return answer & chosen;
  const std::lock_guard<std::mutex> guard(readers_lock);
  return state.chosen[key] = answer & chosen;
}

void hand_over(const Reader& to, Row&& row, size_t enough_of_them) {
  size_t waiting;
  {
    const std::lock_guard<std::mutex> guard(readers_lock);
    const auto queue = state.waiting.find(to.reader);
    if (queue == state.waiting.end()) return;  // it has gone meanwhile
    auto& all = queue->second;
    all.push_back(std::move(row));
    if (all.size() > most_waiting) all.pop_front(), dropped++;
    waiting = all.size();
  }
  if (waiting >= enough_of_them) call_python(sink.load(), 0, "(L)", (long long)to.reader);
}

Row* remember(const Row& row, at::ArrayRef<c10::IValue> arguments) {
  const std::lock_guard<std::mutex> guard(readers_lock);
  Row& slot = state.recent[size_t(state.recent_count++ % most_recent)];
  slot = row;
  slot.took = -1;
  write_shapes(slot.shapes, arguments);
  return &slot;
}

void finish(Row* slot, const Row& row, bool has_failed) {
  const std::lock_guard<std::mutex> guard(readers_lock);
  if (slot->id != row.id) return;  // another one has its place by now
  slot->took = has_failed ? -2 : row.took;
  slot->algorithm = row.algorithm;
}

Running begin_running(Running now) {
  now.ident = uint64_t(pthread_self());
  const std::lock_guard<std::mutex> guard(readers_lock);
  return std::exchange(state.running[thread_id()], now);
}

void end_running(const Running& before) {
  const std::lock_guard<std::mutex> guard(readers_lock);
  if (before.op) state.running[thread_id()] = before;
  else state.running.erase(thread_id());
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// The rows that wait for a reader; 0: the last operators, which stay: `took` is -1 of those that run, -2 where one raised. As JSON, to be
// freed.
MSCTX_API char* msctx_collected(int64_t reader) {
  std::deque<Row> taken;
  {
    const std::lock_guard<std::mutex> guard(readers_lock);
    if (!reader)
      for (int64_t i = std::max<int64_t>(0, state.recent_count - most_recent); i < state.recent_count; i++)
        taken.push_back(state.recent[size_t(i % most_recent)]);
    if (const auto queue = state.waiting.find(reader); queue != state.waiting.end()) taken.swap(queue->second);
  }
  return json_of(taken, [](const Row& row) { return glue::json_of(row); });
}

// Rows that nobody took in time.
MSCTX_API int64_t msctx_collect_dropped() { return dropped.exchange(0); }

// What runs now in each thread, and since when (microseconds of the epoch). As JSON, to be freed.
MSCTX_API char* msctx_running() {
  const std::lock_guard<std::mutex> guard(readers_lock);
  return json_of(state.running, [](const auto& one) {
    const auto& [thread, now] = one;
    std::string json = "{";
    members(json, "thread", thread, "ident", now.ident, "caller", now.caller, "began", now.began);
    members(json, "operator", now.op->name, "module", now.module);
    json.back() = '}';
    return json;
  });
}
