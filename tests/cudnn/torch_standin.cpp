// What msctx takes from torch's library for CUDA, under the names that it has there, for machines without CUDA.
#include <ATen/core/Tensor.h>

#include <atomic>

#define API __attribute__((visibility("default")))

namespace {
int handle;
std::atomic<int> capture_status = 0;
}  // namespace

// Of the CUDA runtime. From a standin_capture(1) on every stream is being recorded, up to a standin_capture(0).
extern "C" API void standin_capture(int status) { capture_status = status; }
extern "C" API int cudaStreamIsCapturing(void*, int* status) { return *status = capture_status, 0; }

namespace at::native {
API void* getCudnnHandle() { return &handle; }
}  // namespace at::native
