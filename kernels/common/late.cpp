// Which weights have had a forward pass under a policy that names gradients' algorithms, and no backward pass yet.
#include "msctx/late.h"

#include <atomic>
#include <unordered_set>

#include "msctx/process.h"

namespace msctx {
namespace {

// Weights of one kind, so many at most. As long as there are none, to ask costs a load.
class LateWeights {
 public:
  void add(const void* weight) {
    constexpr size_t most = 1 << 14;
    const std::lock_guard<std::mutex> guard(lock_);
    if (all_.size() >= most) all_.clear();
    all_.insert(weight);
    any_.store(true, std::memory_order_relaxed);
  }
  bool has(const void* weight) {
    if (!any_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard<std::mutex> guard(lock_);
    return all_.count(weight) > 0;
  }
  // Whether it was there.
  bool take(const void* weight) {
    if (!any_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard<std::mutex> guard(lock_);
    const bool found = all_.erase(weight) > 0;
    any_.store(!all_.empty(), std::memory_order_relaxed);
    return found;
  }

 private:
  std::mutex& lock_ = fork_safe_mutex();
  std::atomic<bool> any_{false};
  std::unordered_set<const void*> all_;
};
LateWeights &waiting = immortal<LateWeights>(), &widened = immortal<LateWeights>();

}  // namespace

void remember_forward(const void* weight) { waiting.add(weight); }
void forget_forward(const void* weight) { waiting.take(weight); }
void remember_widened(const void* weight) { widened.add(weight); }
bool was_widened(const void* weight) { return widened.has(weight); }

void notice_late_backward(const void* weight) {
  if (waiting.take(weight))
    warn(
        "a convolution's backward pass runs after the with-block in which its forward ran: torch's own path computes it, as without the "
        "block; call backward() inside the block");
}

}  // namespace msctx
