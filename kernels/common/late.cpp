// Which weights have had a forward pass under a policy that asks for gradients' algorithms, and no backward pass yet.
#include "msctx/late.h"

#include <atomic>
#include <unordered_set>

#include "msctx/process.h"

namespace msctx {
namespace {

std::mutex& lock = fork_safe_mutex();
std::unordered_set<const void*>& waiting() {
  static auto* all = new std::unordered_set<const void*>;
  return *all;
}
std::atomic<bool> any{false};

bool take(const void* weight) {
  const std::lock_guard<std::mutex> guard(lock);
  const bool found = waiting().erase(weight) > 0;
  any.store(!waiting().empty(), std::memory_order_relaxed);
  return found;
}

}  // namespace

void remember_forward(const void* weight) {
  const std::lock_guard<std::mutex> guard(lock);
  waiting().insert(weight);
  any.store(true, std::memory_order_relaxed);
}

void forget_forward(const void* weight) {
  if (any.load(std::memory_order_relaxed)) take(weight);
}

void notice_late_backward(const void* weight) {
  if (any.load(std::memory_order_relaxed) && take(weight))
    tell(
        "late",
        "a convolution's backward pass runs after the with-block in which its forward ran: torch's own path computes it, not the "
        "algorithms that the block asked for; call backward() inside the block");
}

}  // namespace msctx
