// Which module a weight belongs to: by its storage, else by its shape where only one watched weight has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace msctx::glue {

// nullptr: no watched module. The string lives as long as the process. Without `by_shape` the storage alone decides.
const std::string* module_of(const at::Tensor& weight, bool by_shape = true);

}  // namespace msctx::glue
