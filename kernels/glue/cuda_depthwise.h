// Depthwise convolutions of CUDA tensors by kernels of our own (kernels/cuda), as rows. Which kernels run, and where they are loaded,
// Python plans once for each problem (msctx/native/cuda/plans.py); what is asked again is answered, and launched, from here: by the CUDA
// driver, found by name in the library that Python has opened.
#pragma once

#include <vector>

#include "msctx/table.h"

namespace msctx::glue {

std::vector<ConvRow> cuda_depthwise_rows();

// From Python. The arguments of a kernel are pointers to `count` tensors, of 0: x, 1: w, 2: y, 3: workspace; then the parameters.
struct CudaLaunch {
  void* function;  // CUfunction
  uint32_t grid, threads;
  int32_t count, tensor[4];
  int32_t bytes;
  unsigned char parameters[256];
};
struct CudaPlan {
  int64_t workspace;  // bytes
  int64_t additions;  // the longest chain of them in a result
  int32_t launches;
  CudaLaunch launch[2];
  char obstacle[512];  // why there is none, ended by 0
};

// "" or what is missing.
const char* find_driver(const char* library);
bool has_driver();

// Has the device's primary context be current in this thread. torch does that when it first needs to, which for device 0 may be never
// in a thread that only runs what others have prepared. 0, or a CUresult.
int bind_context(int device);
// cuLaunchKernel on a line of blocks of a line of threads. 0, or a CUresult.
int launch(void* function, unsigned grid, unsigned threads, void* stream, void** arguments);
// Whether its tensor cores have TF32: from A100 on. Yes, where there is no driver to ask.
bool has_tf32(int device);

}  // namespace msctx::glue
