// The hook of matrix products: what runs in place of aten::mm, addmm, bmm, baddbmm, mv, addmv and _addmm_activation, on CPU tensors and on
// those of an NPU, whose matmul is then made of these.
#pragma once

#include "glue/registered.h"
#include "glue/tensors.h"
#include "msctx/policy.h"

namespace msctx::glue {

// Registers it at the key of a place's tensors, and has `in_force` watch it.
template <Place place>
void install_products(InForce& in_force);

struct ProductSizes {
  int64_t rows, depth, columns;
};
// The call of a product of two matrices on the CPU, whose module is not known.
ConvCall call_of_product(ProductSizes, bool left_transposed, bool right_transposed, DType, const PolicyOptions&);

// left @ right, of float32, and what finishes it: by a row of ours where the policy in force has one, else by torch and a pass.
at::Tensor finished_product(const at::Tensor& left, const at::Tensor& right, const Finishing&);

}  // namespace msctx::glue
