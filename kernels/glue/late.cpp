// Which weights have had a forward pass under a policy that asks for gradients' algorithms, and no backward pass yet.
#include "glue/late.h"

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "glue/hook.h"

namespace msctx::glue {
namespace {

struct Waiting {
  std::mutex lock;
  std::unordered_set<const void*> weights;
};
Waiting& waiting() {
  static auto* all = new Waiting;
  return *all;
}
std::atomic<bool> any{false};

const void* storage_of(const at::Tensor& weight) {
  return weight.has_storage() ? weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

bool take(const at::Tensor& weight) {
  Waiting& all = waiting();
  const std::lock_guard<std::mutex> guard(all.lock);
  const bool found = all.weights.erase(storage_of(weight)) > 0;
  any.store(!all.weights.empty(), std::memory_order_relaxed);
  return found;
}

}  // namespace

void remember_forward(const at::Tensor& weight) {
  if (!weight.requires_grad()) return;
  Waiting& all = waiting();
  const std::lock_guard<std::mutex> guard(all.lock);
  all.weights.insert(storage_of(weight));
  any.store(true, std::memory_order_relaxed);
}

void forget_forward(const at::Tensor& weight) {
  if (any.load(std::memory_order_relaxed)) take(weight);
}

void notice_late_backward(const at::Tensor& weight) {
  if (!any.load(std::memory_order_relaxed) || !take(weight)) return;
  tell(
      "late\na convolution's backward pass runs after the with-block in which its forward ran: torch's own path computes it, not the "
      "algorithms that the block asked for; call backward() inside the block");
}

}  // namespace msctx::glue
