// Which weights have had a forward pass under a policy that asks for gradients' algorithms, and no backward pass yet.
#include "msctx/late.h"

#include <atomic>
#include <unordered_set>

#include "msctx/process.h"

namespace msctx {
namespace {

constexpr size_t most_weights = 1 << 14;  // of each kind
std::mutex& lock = fork_safe_mutex();
std::unordered_set<const void*>& waiting() {
  static auto* all = new std::unordered_set<const void*>;
  return *all;
}
std::atomic<bool> any{false};

std::unordered_set<const void*>& widened() {
  static auto* all = new std::unordered_set<const void*>;
  return *all;
}
std::atomic<bool> any_widened{false};

bool take(const void* weight) {
  const std::lock_guard<std::mutex> guard(lock);
  const bool found = waiting().erase(weight) > 0;
  any.store(!waiting().empty(), std::memory_order_relaxed);
  return found;
}

}  // namespace

void remember_forward(const void* weight) {
  const std::lock_guard<std::mutex> guard(lock);
  if (waiting().size() >= most_weights) waiting().clear();
  waiting().insert(weight);
  any.store(true, std::memory_order_relaxed);
}

void forget_forward(const void* weight) {
  if (any.load(std::memory_order_relaxed)) take(weight);
}

void remember_widened(const void* weight) {
  const std::lock_guard<std::mutex> guard(lock);
  if (widened().size() >= most_weights) widened().clear();
  widened().insert(weight);
  any_widened.store(true, std::memory_order_relaxed);
}

bool was_widened(const void* weight) {
  if (!any_widened.load(std::memory_order_relaxed)) return false;
  const std::lock_guard<std::mutex> guard(lock);
  return widened().count(weight) > 0;
}

void notice_late_backward(const void* weight) {
  if (any.load(std::memory_order_relaxed) && take(weight))
    warn(
        "late",
        "a convolution's backward pass runs after the with-block in which its forward ran: torch's own path computes it, as without the "
        "block; call backward() inside the block");
}

}  // namespace msctx
