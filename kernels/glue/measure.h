// `performance`, in a first form: all that can take the problem are run in turns with torch's own path; the fastest is taken.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "msctx/policy.h"

namespace msctx::glue {

// The decision of a measurement, made now or before; `guessed` where none can be made (another thread is measuring; a forked worker).
const Decision* measured(
    Policy&, const ConvCall&, const Decision& guessed, Direction, const at::Tensor& first, const at::Tensor& second,
    const std::function<void()>& torch);

}  // namespace msctx::glue
