// Backward passes that start after the with-block in which their forward ran: torch computes them its own way, and that is told once.
#pragma once

#include <ATen/core/Tensor.h>

namespace msctx::glue {

void remember_forward(const at::Tensor& weight);
void forget_forward(const at::Tensor& weight);
void notice_late_backward(const at::Tensor& weight);

}  // namespace msctx::glue
