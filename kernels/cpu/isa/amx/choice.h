// Which parts values are split into: AMX with integers and bfloat16.
#pragma once

#include "split_precision.h"

namespace msctx::MSCTX_ISA {

using Graded = Int8x6;   // "fp32-grade"
using Rounded = Int8x3;  // "tf32"

// How far a product's factors may be spread, as the product of their crests; beyond, bfloat16 parts are taken, of any exponents.
template <class S>
constexpr double most_spread = 200;
template <>
inline constexpr double most_spread<Rounded> = 60;  // two digits have fewer bits to lose

}  // namespace msctx::MSCTX_ISA
