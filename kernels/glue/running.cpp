#include "glue/running.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "msctx/api.h"
#include "msctx/json.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& lock = fork_safe_mutex();
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
    const std::lock_guard<std::mutex> guard(lock);
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

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// What runs now in each thread, and since when (microseconds of the epoch). As JSON, to be freed.
MSCTX_API char* msctx_running() try {
  std::string json = "[";
  const std::lock_guard<std::mutex> guard(lock);
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
