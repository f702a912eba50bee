// Operators that compute a convolution without aten::convolution, or products without those that are hooked: counted, reported and, under fallback="error", refused.
#pragma once

#include <c10/core/DispatchKey.h>

#include <vector>

#include "msctx/policy.h"

namespace msctx::glue {

// Those of a place, at each of its dispatch keys.
void install_routes(Place, const std::vector<c10::DispatchKey>&);

// The two that torch's own path of each convolution by cuDNN calls as well. `torch_cuda` is the library that has torch's kernels of them.
void install_cudnn_routes(c10::DispatchKey, const char* torch_cuda);

}  // namespace msctx::glue
