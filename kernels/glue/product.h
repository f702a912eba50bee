// The hook of matrix products: what runs in place of aten::mm, addmm, bmm, baddbmm, mv, addmv and _addmm_activation, on CPU tensors and on
// those of an NPU, whose matmul is then made of these.
#pragma once

#include "glue/registered.h"
#include "msctx/policy.h"

namespace msctx::glue {

// Registers it at the key of a place's tensors, and has `in_force` watch it.
template <Place place>
void install_products(InForce& in_force);

}  // namespace msctx::glue
