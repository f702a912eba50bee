// Which module a weight belongs to: by its storage, else by its shape where only one watched weight has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace msctx::glue {

// nullptr: no watched module. The string lives as long as the process.
const std::string* module_of(const at::Tensor& weight);

}  // namespace msctx::glue
