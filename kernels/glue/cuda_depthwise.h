// Depthwise convolutions of CUDA tensors by kernels of our own (kernels/cuda), as rows. Which kernels run, and where they are loaded,
// Python answers once for each problem (msctx/native/cuda/plans.py); what is asked again is answered, and launched, from here.
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

}  // namespace msctx::glue
