#include "glue/running.h"

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
struct Running {
  std::atomic<const Operator*> op{nullptr};
  std::atomic<int64_t> began{0};
  std::atomic<const char*> module{""};
  uint64_t thread = 0;
};
// The lock is held. Of the threads of a process that forks, only the one that does so is in the child.
std::vector<std::shared_ptr<Running>>& running() {
  static auto& all = immortal<std::vector<std::shared_ptr<Running>>>();
  static int64_t process = forks;
  if (process != forks) {
    all.clear();
    process = forks;
  }
  return all;
}
std::shared_ptr<Running>& running_here() {
  thread_local std::shared_ptr<Running> mine;
  thread_local int64_t process = -1;
  if (process != forks) {
    process = forks;
    mine = std::make_shared<Running>();
    mine->thread = thread_id();
    const std::lock_guard<std::mutex> guard(lock);
    auto& all = running();
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.use_count() == 1; }), all.end());
    all.push_back(mine);
  }
  return mine;
}

}  // namespace

void begin_running(const Row& row) {
  Running& mine = *running_here();
  mine.module = row.module;
  mine.began = row.began;
  mine.op = row.op;
}

void end_running() { running_here()->op = nullptr; }

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
    number(json += '{', "thread", int64_t(one->thread));
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
