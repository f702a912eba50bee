// The hook of matrix products: what runs in place of aten::mm, addmm, bmm, baddbmm, mv, addmv and _addmm_activation, on CPU tensors.
#pragma once

#include "glue/registered.h"

namespace msctx::glue {

// Registers it, and has `in_force` watch it.
void install_products(InForce& in_force);

}  // namespace msctx::glue
