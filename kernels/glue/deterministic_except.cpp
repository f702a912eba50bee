// Operators and modules that deterministic mode leaves out, in the forward pass and in the backward pass of what they made.
#include <ATen/Context.h>

#include <atomic>
#include <map>

#include "glue/collector.h"
#include "glue/nodes.h"
#include "glue/operators.h"
#include "msctx/api.h"

namespace msctx::glue {
namespace {

std::mutex& lock = fork_safe_mutex();
std::atomic<PythonFunction> decide{nullptr};  // Python's, for the life of the process
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
std::map<std::pair<const Operator*, std::string>, bool>& decided() {
  static auto* all = new std::map<std::pair<const Operator*, std::string>, bool>;
  return *all;
}
ByNode<bool>& nodes() {
  static auto* all = new ByNode<bool>;
  return *all;
}
thread_local int inside = 0;

bool is_excepted(const Operator& op) {
  const std::pair key{&op, std::string(module_here())};
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (const auto found = decided().find(key); found != decided().end()) return found->second;
  }
  const bool answer = call_python(decide.load(), 0, "(ss)", op.name.c_str(), key.second.c_str()) != 0;
  const std::lock_guard<std::mutex> guard(lock);
  return decided()[key] = answer;
}

struct Relaxed : at::ObserverContext {
  bool was = at::globalContext().deterministicAlgorithms(), warned = at::globalContext().deterministicAlgorithmsWarnOnly();
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) try {
  bool is_one;
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    is_one = nodes().find(fn.forwardThreadId(), fn.seqNr(), false);
  } else {
    is_one = is_excepted(operator_of(fn));
    if (fn.seqNr() >= 0) nodes().remember(fn.seqNr(), is_one || inside > 0);
  }
  if (!is_one || !at::globalContext().deterministicAlgorithms()) return nullptr;
  auto relaxed = std::make_unique<Relaxed>();
  at::globalContext().setDeterministicAlgorithms(false, false);
  inside++;
  return relaxed;
} catch (const std::exception&) {  // no memory
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext* given) {
  if (!given) return;
  const auto& before = static_cast<const Relaxed&>(*given);
  at::globalContext().setDeterministicAlgorithms(before.was, before.warned);
  inside--;
}

}  // namespace
}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// `choose` gets an operator and the module in which it runs; nullptr: deterministic mode has no exceptions. 0: there was no memory.
MSCTX_API int msctx_deterministic_except(PythonFunction choose) try {
  const std::lock_guard<std::mutex> guard(lock);
  decided().clear();
  decide = choose;
  if (choose && callback == at::INVALID_CALLBACK_HANDLE) {
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else if (!choose && callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(callback);
    callback = at::INVALID_CALLBACK_HANDLE;
  }
  return 1;
} catch (const std::exception&) {
  return 0;
}
