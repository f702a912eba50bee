// Operators and modules that deterministic mode leaves out, in the forward pass and in the backward pass of what they made.
#include <ATen/Context.h>
#include <pthread.h>

#include <atomic>
#include <map>

#include "glue/collector.h"
#include "glue/nodes.h"
#include "glue/operators.h"
#include "msctx/api.h"

namespace msctx::glue {
namespace {

std::mutex& except_lock = fork_safe_mutex();
std::atomic<PythonFunction> decide{nullptr};  // Python's, for the life of the process
at::CallbackHandle except_callback = at::INVALID_CALLBACK_HANDLE;
auto& decided = immortal<std::map<std::pair<const Operator*, std::string>, bool>>();
auto& nodes = immortal<ByNode<bool>>();
thread_local int inside = 0;

bool is_excepted(const Operator& op) {
  const std::pair key{&op, std::string(module_here())};
  {
    const std::lock_guard<std::mutex> guard(except_lock);
    if (const auto found = decided.find(key); found != decided.end()) return found->second;
  }
  const bool answer = call_python(decide.load(), 0, "(ss)", op.name.c_str(), key.second.c_str()) != 0;
  const std::lock_guard<std::mutex> guard(except_lock);
  return decided[key] = answer;
}

// The flag belongs to the process, and so do the operators that run without it: the last to end sets it, to what it was or what it is
// set to meanwhile.
struct Mode {
  bool is_on = false, only_warns = false;
};
struct {
  std::mutex& lock = fork_safe_mutex();
  Mode found;
  int64_t running = 0, generation = 0;
} relaxed;

Mode in_force() {
  return {at::globalContext().deterministicAlgorithms(), at::globalContext().deterministicAlgorithmsWarnOnly()};
}
void put(const Mode& mode) { at::globalContext().setDeterministicAlgorithms(mode.is_on, mode.only_warns); }

// Whatever runs now does not end here: the thread is gone, or the generation.
void stop_relaxing() {
  if (relaxed.running) put(relaxed.found);
  relaxed.running = 0;
  relaxed.generation++;
}
const int registered = pthread_atfork(nullptr, nullptr, stop_relaxing);

struct Relaxed : at::ObserverContext {
  int64_t generation = 0;
};

std::unique_ptr<at::ObserverContext> begin_except(const at::RecordFunction& fn) try {
  bool is_one;
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    is_one = nodes.find(fn.forwardThreadId(), fn.seqNr(), false);
  } else {
    is_one = is_excepted(operator_of(fn));
    if (fn.seqNr() >= 0) nodes.remember(fn.seqNr(), is_one || inside > 0);
  }
  if (!is_one) return nullptr;
  auto mine = std::make_unique<Relaxed>();
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  if (!relaxed.running) {
    relaxed.found = in_force();
    if (!relaxed.found.is_on) return nullptr;
    put({});
  }
  relaxed.running++;
  mine->generation = relaxed.generation;
  inside++;
  return mine;
} catch (const std::exception&) {  // no memory
  return nullptr;
}

void end_except(const at::RecordFunction&, at::ObserverContext* given) {
  if (!given) return;
  inside--;
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  if (static_cast<const Relaxed&>(*given).generation == relaxed.generation && --relaxed.running == 0) put(relaxed.found);
}

}  // namespace
}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// `choose` gets an operator and the module in which it runs; nullptr: deterministic mode has no exceptions. 0: there was no memory.
MSCTX_API int msctx_deterministic_except(PythonFunction choose) try {
  const std::lock_guard<std::mutex> guard(except_lock);
  decided.clear();
  decide = choose;
  {
    const std::lock_guard<std::mutex> mode(relaxed.lock);
    stop_relaxing();
  }
  if (choose && except_callback == at::INVALID_CALLBACK_HANDLE) {
    except_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(begin_except, end_except).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else if (!choose && except_callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(except_callback);
    except_callback = at::INVALID_CALLBACK_HANDLE;
  }
  return 1;
} catch (const std::exception&) {
  return 0;
}

// Torch's flags, as they are for operators that are not left out: is_on + 2 * only_warns.
MSCTX_API int msctx_deterministic() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  const Mode mode = relaxed.running ? relaxed.found : in_force();
  return mode.is_on + 2 * mode.only_warns;
}
MSCTX_API void msctx_set_deterministic(int mode) {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  relaxed.found = {bool(mode & 1), bool(mode & 2)};
  if (!relaxed.running) put(relaxed.found);
}
