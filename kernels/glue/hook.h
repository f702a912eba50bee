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

// The kernels that are registered, for each place.
template <Place place>
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, SymInts stride, SymInts padding,
    SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups);
template <Place place>
at::Tensor traced_convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, SymInts stride, SymInts padding,
    SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups, bool benchmark, bool deterministic, bool cudnn_enabled,
    bool allow_tf32);
template <Place place>
Three convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, at::OptionalSymIntArrayRef bias_sizes,
    SymInts stride, SymInts padding, SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups,
    std::array<bool, 3> output_mask);

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

}  // namespace msctx::glue
