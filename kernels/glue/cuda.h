// Convolutions of CUDA tensors: the table of what can run them, cuDNN's algorithms and kernels of our own, and how one is run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "msctx/conv.h"

namespace msctx::glue {

const ConvTable& cuda_table();

// What rows are asked about, while one of these lives: the call, since what they can take depends on the layout and the device, too.
// This thread is on its device meanwhile. With nullptr nothing changes.
class CudaCall {
 public:
  CudaCall(const ConvCall*, int64_t policy);
  ~CudaCall();

 private:
  const ConvCall* call_before_;
  int64_t policy_before_;
  c10::OptionalDeviceGuard on_;
};
const ConvCall& call_in_question();
// Problem, layout and device, as a key.
std::string key_of(const ConvProblem&, const ConvCall&);

// A run was refused after all. Unless that is for good (there is no compiler, for example), it may succeed another time.
struct CudaFailed : std::runtime_error {
  explicit CudaFailed(const std::string& why, bool for_good = false) : std::runtime_error(why), is_for_good(for_good) {}
  bool is_for_good;
};
// Whether that has happened before, to this problem of the call in question: then it is a reason. What is not for good holds as long as
// the policy.
void add_failure(const ConvAlgorithm&, const ConvProblem&, Op, Reasons&);
// A text that lives as long as the process, as those of Reasons must.
const char* permanent(const std::string&);

// Runs a row. fprop: first = input, second = weight; dgrad: gradient of the output, weight; wgrad: input, gradient of the output.
// Throws CudaFailed, and from then on the row rejects this problem for that reason.
at::Tensor run_on_cuda(const ConvRow&, const ConvCall&, int64_t policy, const at::Tensor& first, const at::Tensor& second);

// The memory format in which a convolution is computed: torch's own rule for cuDNN, which its shape functions follow.
at::MemoryFormat cuda_format(const at::Tensor& input, const at::Tensor& weight);

// The stream that is current on the device, as cudaStream_t.
void* stream_of(int device);
// Whether it is being recorded as a CUDA graph. `torch_cuda` is the library that was linked with the runtime to ask.
bool is_capturing(int device);
void find_runtime(const char* torch_cuda);
void wait_for_device(int device);
// Seconds that one of these takes on the device, by its own clock. Short ones are repeated, back to back as in a training: what the
// host needs to give one out is hidden behind the one before.
double seconds_on_device(int device, const std::function<void()>& run);

// cuDNN by its legacy interface, in which a convolution's algorithm can be named: the copy that torch has loaded, with torch's handle and
// so on torch's stream. Finds its functions in a library that is loaded, and torch's handle in another; "" or what is missing.
std::string load_cudnn(const char* cudnn, const char* torch_cuda);

// Its algorithms.
std::vector<ConvRow> cudnn_rows();

// Depthwise convolutions by kernels of our own (kernels/cuda), as rows. Which kernels run, and where they are loaded, Python plans once for
// each problem (msctx/native/cuda/depthwise_launches.py); what is asked again is answered, and launched, from here: by the CUDA driver.
std::vector<ConvRow> cuda_depthwise_rows();

// Whether the tensor cores of a device have TF32: from A100 on. Yes, where there is no driver to ask.
bool has_tf32(int device);

}  // namespace msctx::glue
