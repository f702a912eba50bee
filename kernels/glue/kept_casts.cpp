// Kept casts: by tensor, which is what a model holds on to.
#include "glue/kept_casts.h"

#include <ATen/ops/to_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& lock = fork_safe_mutex();  // of all policies

}  // namespace

at::Tensor KeptCasts::get(const at::Tensor& tensor, c10::ScalarType to, int64_t& count) {
  const void* at = tensor.const_data_ptr();
  const c10::TensorImpl* key = tensor.unsafeGetTensorImpl();
  {
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = kept_.find(key);
    if (found != kept_.end() && !found->second.of.expired() && found->second.at == at && found->second.cast.scalar_type() == to &&
        found->second.cast.sizes() == tensor.sizes() && found->second.cast.strides() == tensor.strides())
      return found->second.cast;
  }
  count++;
  at::Tensor made;
  {
    const c10::InferenceMode ordinary(false);  // it may be used later where graphs are recorded
    const at::NoGradGuard unrecorded;
    made = at::_ops::to_dtype::call(tensor.detach(), to, false, false, std::nullopt);
  }
  std::vector<at::Tensor> gone;  // freed when the lock is not held
  const std::lock_guard<std::mutex> guard(lock);
  for (auto one = kept_.begin(); one != kept_.end();) {
    const bool is_dead = one->second.of.expired() || one->first == key;
    if (is_dead) gone.push_back(std::move(one->second.cast));
    one = is_dead ? kept_.erase(one) : std::next(one);
  }
  kept_.insert({key, {decltype(Kept::of)(tensor.getIntrusivePtr()), at, made}});
  return made;
}

void KeptCasts::drop() {
  std::unordered_map<const c10::TensorImpl*, Kept> gone;
  const std::lock_guard<std::mutex> guard(lock);
  gone.swap(kept_);
}

}  // namespace msctx::glue
