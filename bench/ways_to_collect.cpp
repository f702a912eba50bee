// Two ways in C++ to see every operator with its name, inputs and outputs: a callback of at::RecordFunction, and a boxed kernel under a
// key of the dispatcher that a thread can turn on. Neither does anything with them, except where a test wants to know what they see.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

namespace {

constexpr auto key = c10::DispatchKey::TESTING_ONLY_GenericMode;  // above autograd and autocast; nothing in torch uses it
std::atomic<int64_t> touched{0};
std::atomic<bool> keeps{false};
std::mutex lock;
std::string kept;  // a line for each operator: its name, and the first value of its first argument
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

void see(const char* name, at::ArrayRef<c10::IValue> inputs) {
  touched.fetch_add(int64_t(inputs.size()) + name[0], std::memory_order_relaxed);
  if (!keeps.load(std::memory_order_relaxed)) return;
  double first = 0;
  if (!inputs.empty() && inputs[0].isTensor()) {
    const at::Tensor& t = inputs[0].toTensor();
    const bool is_read = t.defined() && t.device().is_cpu() && t.layout() == at::kStrided && !t.key_set().has(c10::DispatchKey::Python);
    if (is_read && t.scalar_type() == at::kFloat && t.numel()) first = *t.const_data_ptr<float>();
  }
  char text[32];
  std::snprintf(text, sizeof text, " %g\n", first);
  const std::lock_guard<std::mutex> guard(lock);
  kept += name;
  kept += text;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
  see(fn.name(), fn.inputs());
  return nullptr;
}

void end(const at::RecordFunction& fn, at::ObserverContext*) { touched.fetch_add(int64_t(fn.outputs().size()), std::memory_order_relaxed); }

void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  see(op.schema().name().c_str(), at::ArrayRef<c10::IValue>(stack->data() + stack->size() - count, count));
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
  touched.fetch_add(int64_t(op.schema().returns().size()), std::memory_order_relaxed);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed>()); }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void ways_callback(int is_on) {
  if (!is_on) return at::removeCallback(callback);
  callback = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

EXPORT void ways_boxed(int is_on) { c10::impl::tls_set_dispatch_key_included(key, is_on != 0); }

EXPORT void ways_keep(int is_on) { keeps = is_on != 0; }

// What was kept, to be freed.
EXPORT char* ways_kept() {
  const std::lock_guard<std::mutex> guard(lock);
  return strdup(std::exchange(kept, {}).c_str());
}
