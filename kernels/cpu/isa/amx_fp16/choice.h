// Which parts values are split into: AMX with float16.
#pragma once

#include "split_precision.h"

namespace msctx::MSCTX_ISA {

using Graded = Float16x3;   // "fp32-grade"
using Rounded = Float16x1;  // "tf32"
#define MSCTX_HAS_FLOAT16

}  // namespace msctx::MSCTX_ISA
