// Every algorithm that runs on the matrix unit, in order of priority; the rows of ../table.cpp follow them.

#include "msctx/table.h"

namespace msctx::MSCTX_ISA {

namespace {

#define MSCTX_TEXT_OF(x) #x
#define MSCTX_TEXT(x) MSCTX_TEXT_OF(x)
constexpr ConvTable all = {MSCTX_TEXT(MSCTX_ISA), nullptr, 0};

}  // namespace

const ConvTable& table() { return all; }

}  // namespace msctx::MSCTX_ISA
