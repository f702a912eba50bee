// What msctx takes from torch's library for CUDA, under the names that it has there, for machines without CUDA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>

#define API __attribute__((visibility("default")))

namespace {
int handle, calls = 0;
}

extern "C" API int standin_calls() { return std::exchange(calls, 0); }

namespace at::native {
API void* getCudnnHandle() { return &handle; }
}  // namespace at::native

// The kernel of aten::cudnn_convolution; that of the transposed one is missing.
namespace at::cuda {
API Tensor cudnn_convolution_symint(
    const Tensor& x, const Tensor& w, c10::SymIntArrayRef padding, c10::SymIntArrayRef stride, c10::SymIntArrayRef dilation, c10::SymInt groups,
    bool, bool, bool) {
  calls++;
  const std::vector<c10::SymInt> none(padding.size(), 0);
  return at::convolution_symint(x.cpu(), w.cpu(), {}, stride, padding, dilation, false, none, groups).to(x.device());
}
}  // namespace at::cuda
