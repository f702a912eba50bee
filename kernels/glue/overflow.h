// Which operator makes what is not finite.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "glue/operators.h"

namespace msctx::glue {

// Whether its results hold what is not finite and nothing that went into it does, or nothing at the same place; or what did is passed on, and that is asked for.
// `wanted`: 1, of operators that compute; 2, of those that accumulate into memory; 4, what is passed on, too. `had_nonfinite`: of the
// arguments that are written to, before.
bool has_overflowed(
    const Operator&, int wanted, const std::vector<c10::IValue>& arguments, const std::vector<bool>& had_nonfinite,
    const std::vector<at::Tensor>& results);

}  // namespace msctx::glue
