// Which operator makes what is not finite.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "glue/operators.h"
#include "msctx/table.h"

namespace msctx::glue {

// Whether its results hold what is not finite and nothing that went into it does, or nothing that reaches the same place: an infinity is
// passed on, with either sign. A reader may want what is passed on, too: then NaN, and what a parameter holds, is reported, and what
// cannot be read.
// `wanted`: 1, of operators that compute; 2, of those that accumulate into memory; 4, what is passed on, too. `before`: what was known of
// the arguments that are written to.
bool has_overflowed(
    const Operator&, int wanted, const std::vector<c10::IValue>& arguments,
    const std::vector<std::optional<Statistics>>& before, const std::vector<at::Tensor>& results);

}  // namespace msctx::glue
