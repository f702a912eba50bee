// Convolutions and products of compiled code that finish their results in the same call: the operators msctx::convolution and msctx::linear.
#pragma once

#include "glue/hook.h"
#include "glue/tensors.h"

#include <functional>

namespace msctx::glue {

// Defines the operators. The result of a convolution is channels_last, whatever its input is; that of a product [rows][columns].
void install_finished();

// What they are given beside the factors; `of` is the operator.
Finishing finishing_of(
    const char* of, int64_t channels, const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& shift,
    const std::optional<at::Tensor>& other, c10::string_view activation, double low, double high, bool adds_last);
void describe(ConvCall&, const Finishing&);
// By a pass over a result in this format.
void finish(const at::Tensor& result, const Finishing&, at::MemoryFormat);

// The same by torch's own path: oneDNN, with the epilogue as far as it has it, and a weight that is packed once; where torch has no oneDNN,
// by `convolution` and a pass over its result.
at::Tensor finished_by_torch(
    const Policy*, const at::Tensor& input, const at::Tensor& weight, const Geometry&, const Finishing&,
    const std::function<at::Tensor()>& convolution);

// Registered for the CPU; in convolution.cpp, beside what it shares with the hook.
at::Tensor finished_convolution(
    const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    int64_t groups, const std::optional<at::Tensor>& scale, const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& other,
    c10::string_view activation, double low, double high, bool adds_last);

}  // namespace msctx::glue
