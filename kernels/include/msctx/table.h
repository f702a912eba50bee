// The table of all algorithms, as each instruction set compiles it.
#pragma once

#include "msctx/conv.h"

namespace msctx {

// Passes over tensors: see interface.h.
struct Passes {
  Fingerprint (*fingerprint)(const void* data, int64_t bytes, const Parallel&);
  void (*statistics)(DType, const void* data, int64_t count, Statistics* pieces, const Parallel&);
  bool (*has_nonfinite)(DType, const void* data, int64_t count);
  void (*peaks)(const float* values, int64_t n, int64_t channels, int64_t positions, bool channels_last, int64_t* found, const Parallel&);
  void (*finish)(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);
};

namespace generic { const ConvTable& table(); }
namespace avx2 { const ConvTable& table(); }
namespace avx512 { const ConvTable& table(); }
// Those with AMX have the rows that run on it, and then those of avx512.
namespace amx { const ConvTable &table(), &table_of_float16(); }
namespace amx_emulated { const ConvTable &table(), &table_of_float16(); }

}  // namespace msctx
