// Weights in the dtype that a precision policy computes in, kept from call to call while frozen_weights promises that they do not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

namespace msctx::glue {

class KeptCasts {
 public:
  // The tensor in another dtype, outside autograd: only for tensors whose cast is not to be recorded. `made` counts the casts.
  at::Tensor get(const at::Tensor& tensor, c10::ScalarType to, int64_t& made);
  void drop();

 private:
  struct Kept {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> of;  // no other tensor gets its address as long as this is here
    const void* at;
    at::Tensor cast;
  };
  std::unordered_map<const c10::TensorImpl*, Kept> kept_;
};

}  // namespace msctx::glue
