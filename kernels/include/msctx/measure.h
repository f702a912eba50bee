// `performance`: the rows that can take a problem are run in turns with torch's own path, once; see policy_tuning.cpp for what follows.
#pragma once

#include <functional>

#include "msctx/policy.h"

namespace msctx {

// Computes the call by a row, or (nullptr) by torch's own path, as it would be computed if that were chosen.
struct Run {
  std::function<void(const ConvRow*)> prepare;    // once before anything is measured: a first run compiles and loads. May be empty
  std::function<double(const ConvRow*)> seconds;  // gives those that one run takes
};
// By the clock of the host.
double seconds_of(const std::function<void()>& run);

// The decision of a measurement, made now or before; `guessed` where none can be made at this call.
Decided measured(Policy&, const ConvCall&, const Decided& guessed, Direction, int threads, const Run&);

}  // namespace msctx
