// Which parts values are split into: AMX with integers and bfloat16.
#pragma once

#include "split_precision.h"

namespace msctx::MSCTX_ISA {

using Graded = Int8x6;   // "fp32-grade"
using Rounded = Int8x3;  // "tf32"

}  // namespace msctx::MSCTX_ISA
