// The module in which this thread computes, while operators are collected.
#pragma once

namespace msctx::glue {

const char* module_here();  // its path; "": none

}  // namespace msctx::glue
