// What msctx takes from torch's library for CUDA, under the names that it has there, for machines without CUDA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>

#include <atomic>

#define API __attribute__((visibility("default")))

namespace {
int handle;
std::atomic<int> calls = 0, capture_status = 0;
}  // namespace

extern "C" API int standin_calls() { return calls.exchange(0); }

// Of the CUDA runtime. From a standin_capture(1) on every stream is being recorded, up to a standin_capture(0).
extern "C" API void standin_capture(int status) { capture_status = status; }
extern "C" API int cudaStreamIsCapturing(void*, int* status) { return *status = capture_status, 0; }

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
