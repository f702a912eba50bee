#include "glue/running.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "msctx/api.h"
#include "msctx/json.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& running_lock = fork_safe_mutex();
struct Thread {
  std::atomic<const Operator*> op{nullptr};
  std::atomic<int64_t> began{0};
  std::atomic<const char*> module{""};
  std::atomic<long> caller{0};
  const uint64_t id = thread_id(), pthread = uint64_t(pthread_self());
};
// The lock is held. Of the threads of a process that forks, only the one that does so is in the child.
std::vector<std::shared_ptr<Thread>>& running() {
  static auto& all = immortal<std::vector<std::shared_ptr<Thread>>>();
  static int64_t process = forks;
  if (process != forks) {
    all.clear();
    process = forks;
  }
  return all;
}
std::shared_ptr<Thread>& running_here() {
  thread_local std::shared_ptr<Thread> mine;
  thread_local int64_t process = -1;
  if (process != forks) {
    process = forks;
    mine = std::make_shared<Thread>();
    const std::lock_guard<std::mutex> guard(running_lock);
    auto& all = running();
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.use_count() == 1; }), all.end());
    all.push_back(mine);
  }
  return mine;
}

}  // namespace

Running begin_running(const Running& now) {
  Thread& mine = *running_here();
  const Running before{mine.op, mine.began, mine.module, mine.caller};
  end_running(now);
  return before;
}

void end_running(const Running& before) {
  Thread& mine = *running_here();
  mine.module = before.module;
  mine.began = before.began;
  mine.caller = before.caller;
  mine.op = before.op;
}

// One of the last operators. Threads may read it while another one writes it, so that it has no pointers that anybody frees.
struct Recent {
  int64_t id, step, began, took;  // took: -1 while it runs, -2 where it raised
  const Operator* op;
  const char *module, *direction;
  uint64_t thread;
  // Of the tensors that go in, as far as there is room.
  int64_t sizes[24];
  at::ScalarType dtypes[16];
  int8_t dims[16];  // -1: nested
  int8_t tensors;
  bool has_more;
  char algorithm[40];
};

namespace {

constexpr int64_t most_recent = 1024;
Recent recent[most_recent];
std::atomic<int64_t> recent_count{0};

// Such as Float[8x8] Long[8].
std::string shapes_of(const Recent& of) {
  std::string text;
  const int64_t* size = of.sizes;
  for (int i = 0; i < of.tensors; i++) {
    text += std::string(i ? " " : "") + c10::toString(of.dtypes[i]) + "[" + (of.dims[i] < 0 ? "nested" : "");
    for (int d = 0; d < of.dims[i] && size < std::end(of.sizes); d++) text += (d ? "x" : "") + std::to_string(*size++);
    text += "]";
  }
  return of.has_more ? text + (of.tensors ? " ..." : "...") : text;
}

// Its dtype and sizes, the latter from `size` on. Returns where the next ones go.
int64_t* describe(Recent& slot, int64_t* size, const at::Tensor& t) {
  if (!t.defined()) return size;
  const int64_t dims = t.is_nested() ? 0 : t.dim();
  if (slot.has_more |= slot.tensors == std::size(slot.dims) || dims > std::end(slot.sizes) - size; slot.has_more) return size;
  slot.dtypes[slot.tensors] = t.scalar_type();
  slot.dims[slot.tensors++] = t.is_nested() ? -1 : int8_t(dims);
  for (int64_t d = 0; d < dims; d++) *size++ = t.size(d);
  return size;
}

}  // namespace

Recent* remember(const Row& row, at::ArrayRef<c10::IValue> arguments) {
  Recent& slot = recent[recent_count++ % most_recent];
  slot.id = row.id, slot.step = row.step, slot.began = row.began, slot.took = -1;
  slot.op = row.op, slot.module = row.module, slot.direction = row.direction, slot.thread = row.thread;
  slot.algorithm[0] = 0, slot.tensors = 0, slot.has_more = false;
  int64_t* size = slot.sizes;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) size = describe(slot, size, value.toTensor());
    else if (value.isList())
      for (const c10::IValue& one : value.toListRef())
        if (one.isTensor()) size = describe(slot, size, one.toTensor());
  }
  return &slot;
}

void finish(Recent* slot, const Row& row, bool has_failed) {
  if (slot->id != row.id) return;  // another one has its place by now
  slot->took = has_failed ? -2 : row.took;
  std::strncpy(slot->algorithm, row.algorithm.c_str(), sizeof slot->algorithm - 1);
}

std::string recent_as_json() {
  std::string json = "[";
  const int64_t count = recent_count;
  for (int64_t i = std::max<int64_t>(0, count - most_recent); i < count; i++) {
    const Recent& one = recent[i % most_recent];
    if (!one.op) continue;
    json += '{';
    const std::pair<const char*, int64_t> numbers[] = {
        {"id", one.id}, {"step", one.step}, {"began", one.began}, {"took", one.took}, {"thread", int64_t(one.thread)}};
    for (const auto& [name, value] : numbers) number(json, name, value);
    member(json, "operator", one.op->name);
    member(json, "module", one.module);
    member(json, "direction", one.direction);
    member(json, "shapes", shapes_of(one));
    member(json, "algorithm", one.algorithm);
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  return json + "]";
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// What runs now in each thread, and since when (microseconds of the epoch). As JSON, to be freed.
MSCTX_API char* msctx_running() try {
  std::string json = "[";
  const std::lock_guard<std::mutex> guard(running_lock);
  for (const auto& one : running()) {
    const Operator* op = one->op.load();
    if (!op) continue;
    number(json += '{', "thread", int64_t(one->id));
    number(json, "ident", int64_t(one->pthread));
    number(json, "caller", one->caller);
    number(json, "began", one->began);
    member(json, "operator", op->name);
    member(json, "module", one->module.load());
    json.back() = '}';
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  return strdup((json + "]").c_str());
} catch (const std::exception&) {
  return nullptr;
}
