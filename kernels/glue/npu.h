// Matrix products of an NPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "msctx/table.h"

namespace msctx::glue {

// Whether the matrix unit of the chip computes float32.
void set_npu(bool has_float32);

// fp16x3: on a chip whose matrix unit has float16 alone three products of halves of the values, on others torch_npu's own, as strict is.
const ConvTable& npu_table();
bool computes_from_halves(const ConvRow&);

// a @ b of float32 matrices, or of batches of them.
at::Tensor product_of_halves(const at::Tensor& a, const at::Tensor& b);

}  // namespace msctx::glue
