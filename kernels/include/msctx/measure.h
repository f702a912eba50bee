// `performance`, in a first form: all that can take the problem are run in turns with torch's own path; the fastest is taken.
#pragma once

#include <functional>

#include "msctx/policy.h"

namespace msctx {

// Computes the call once by a row, or (nullptr) by torch's own path.
using Run = std::function<void(const ConvRow*)>;

// The decision of a measurement, made now or before; `guessed` where none can be made (another thread is measuring; a forked worker).
const Decision* measured(Policy&, const ConvCall&, const Decision& guessed, Direction, int threads, const Run&);

}  // namespace msctx
