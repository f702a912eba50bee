// The indices of a convolution, computed beforehand: which element of a plane lies under which tap for which output position.
#pragma once

#include "msctx/lowering.h"

namespace msctx::MSCTX_ISA {

// [taps][out]: the element's index in its plane, or -1 in the padding.
static inline size_t index_table_size(const ConvProblem& p) { return align64(sizeof(int32_t) * volume(p.window) * volume(p.out)); }
static inline bool index_table_fits(const ConvProblem& p) { return volume(p.in) <= INT32_MAX; }

static inline void fill_index_table(const ConvProblem& p, int32_t* table, const Parallel& parallel) {
  const int64_t out = volume(p.out);
  parallel_for(parallel, volume(p.window), [&](int64_t tap, int) {
    int32_t* row = table + tap * out;
    for_runs(
        p, tap_of(p, tap), 0, out,
        [&](int64_t at, int64_t count, int64_t source) {
          for (int64_t j = 0; j < count; j++) row[at + j] = int32_t(source + j * p.stride[2]);
        },
        [&](int64_t at, int64_t count) {
          for (int64_t j = 0; j < count; j++) row[at + j] = -1;
        });
  });
}

static inline void gather(const float* plane, const int32_t* indices, int64_t count, float* out) {
  for (int64_t j = 0; j < count; j++) out[j] = indices[j] < 0 ? 0.0f : plane[indices[j]];
}

}  // namespace msctx::MSCTX_ISA
