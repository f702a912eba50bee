// cuDNN by its legacy interface, in which a convolution's algorithm can be named: the copy that torch has loaded, with torch's handle
// and so on torch's stream. Found by name while the process runs: nothing of CUDA is needed to compile this.
#pragma once

#include <string>
#include <vector>

#include "msctx/table.h"

namespace msctx::glue {

// Finds cuDNN's functions in a library that is loaded, and torch's handle in another; "" or what is missing.
std::string load_cudnn(const char* cudnn, const char* torch_cuda);

// Its algorithms.
std::vector<ConvRow> cudnn_rows();

}  // namespace msctx::glue
