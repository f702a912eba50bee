// Which parts values are split into: AMX with float16.
#pragma once

#include "split_precision.h"

namespace msctx::MSCTX_ISA {

using Graded = Float16x3;   // "fp32-grade"
using Rounded = Float16x1;  // "tf32"

// How far a product's factors may be spread, as the product of their crests; beyond, bfloat16 parts are taken, of any exponents.
// The parts of a value hold it to 2^-39 of the largest.
template <class S>
constexpr double most_spread = 32768;

}  // namespace msctx::MSCTX_ISA
