// cuDNN by its legacy interface, in which a convolution's algorithm can be named: the copy that torch has loaded, with torch's handle
// and so on torch's stream. Found by name while the process runs: nothing of CUDA is needed to compile this.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <stdexcept>
#include <string>

#include "msctx/call.h"

namespace msctx::glue {

// Finds cuDNN's functions in a library that is loaded, and torch's handle in another; "" or what is missing.
std::string load_cudnn(const char* cudnn, const char* torch_cuda);

// Its algorithms, as rows. They are asked about the call of a CudnnCall, on whose device this thread is meanwhile: what cuDNN takes
// depends on the layout and the device, too. With nullptr nothing changes.
const ConvTable& cudnn_table();
class CudnnCall {
 public:
  explicit CudnnCall(const ConvCall*);
  ~CudnnCall();

 private:
  const ConvCall* before_;
  c10::OptionalDeviceGuard on_;
};

// The memory format in which cuDNN computes a convolution: torch's own rule, which its shape functions follow.
at::MemoryFormat cudnn_format(const at::Tensor& input, const at::Tensor& weight);

// cuDNN, or the allocator that gives its workspace, refused a run: from now on the row says so of this problem.
struct CudnnFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs a row. fprop: first = input, second = weight; dgrad: gradient of the output, weight; wgrad: input, gradient of the output.
at::Tensor run_cudnn(const ConvRow&, const ConvCall&, const at::Tensor& first, const at::Tensor& second);

void wait_for_device(int device);
// Whether the current stream is being recorded as a CUDA graph.
bool is_capturing(int device);

}  // namespace msctx::glue
