// What the kernels of the hook share with their registration.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "glue/registered.h"
#include "msctx/policy.h"

namespace msctx::glue {

using SymInts = c10::SymIntArrayRef;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Registers the kernels of convolutions for a place, at its dispatch key, and has `in_force` watch them.
template <Place place>
void install_convolutions(c10::DispatchKey, InForce& in_force);

// What was in force at a place before, and the dispatch key that the place has.
struct BeforeUs {
  c10::DispatchKey key = c10::DispatchKey::CPU;
  Before convolution, traced, backward;
};
extern BeforeUs* const before_us;  // by Place

// torch's own convolution calls other operators that are hooked too, for code that calls them itself: inside it they are not asked again.
extern thread_local int inside_torch;
struct InsideTorch {
  InsideTorch() { inside_torch++; }
  ~InsideTorch() { inside_torch--; }
};

// Warns of a fallback, or raises, as the policy asks. Call it before the work, and with no lock held.
void complain(const Policy&, const Decision&);
// The same of a call that is not ours to compute, which then counts.
void refuse(Policy&, Direction, const ConvText&, const std::string& reason, int64_t books);

}  // namespace msctx::glue
