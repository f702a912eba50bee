// What the common files share, and the C functions that Python calls: tables, single convolutions, the policy, the choices.
#pragma once

#include "msctx/table.h"

#define MSCTX_API extern "C" __attribute__((visibility("default")))

namespace msctx {

const ConvTable& table_in_use();
const ConvTable* table_of(const char* isa);  // nullptr: not on this processor

struct Memory {
  void* (*allocate)(void* arg, size_t bytes);  // aligned to 64 bytes; may throw
  void (*release)(void* arg, void* data);
  void* arg;
};

// nullptr: the table has none of that name.
const ConvAlgorithm* algorithm_named(const ConvTable&, const char* name);
// Computes again what is not finite.
constexpr const char* safe_algorithm = "gemm";

// The form window_norms of a weight.
size_t window_norms_size(const ConvProblem&);
void prepare_window_norms(const ConvTable&, const ConvProblem&, Op, const void* w, float* norms, const Parallel&);

// Runs one algorithm, and applies the epilogue of the tensors, if any, whether or not the algorithm does. Returns whether its result had to be computed again (see ConvAlgorithm::run and spreads_nonfinite).
// `kept` may give prepared weights, or null where it has none: they are then made in scratch. Where w is null, `kept` has it.
// `images_apart`: as so many problems of one image, of which none decides how another is computed; not for weight gradients.
bool conv_run(
    const ConvTable&, const ConvAlgorithm&, const ConvProblem&, Op, const ConvTensors&, const Prepared& kept, const Memory&,
    const Parallel&, bool images_apart = false);
// For conv_run: nothing is kept.
inline constexpr Prepared none_kept{[](void*, int) -> const void* { return nullptr; }, nullptr};
// Bytes beside the tensors, those of a prepared weight in its first form included.
size_t memory_of(const ConvAlgorithm&, const ConvProblem&, Op, int threads);

// The sums of y over images and positions: the gradient of the bias, [k], in a fixed order.
void bias_gradient(
    const ConvProblem&, const void* y, bool channels_last, int64_t channels, int64_t positions, void* bias, const Parallel&);

Parallel serial();

}  // namespace msctx

// The instruction sets of this processor, best first; nullptr after the last.
MSCTX_API const char* msctx_isa(int index);
MSCTX_API const char* msctx_isa_in_use();
MSCTX_API const char* msctx_compiler();
MSCTX_API int msctx_use_isa(const char* name);  // 0: not on this processor

// One row of an instruction set's table, for tests and tools: calls without torch.
struct MsctxRow {
  const char *name, *algorithm, *math;
  int32_t direction, fixed_order, same_on_every_isa, reads_channels_last, finishes, keeps_weights;
};
MSCTX_API int msctx_row(const char* isa, int index, MsctxRow* row);  // 0: there are no more
// Up to 8 reasons why the row cannot take the problem; returns how many.
MSCTX_API int msctx_reasons(const char* isa, int index, const msctx::ConvProblem*, int op, const char** reasons);
MSCTX_API int64_t msctx_workspace(const char* isa, int index, const msctx::ConvProblem*, int op, int threads);
MSCTX_API double msctx_error(const char* isa, int index, const msctx::ConvProblem*, int op);
// Runs a row with threads of its own; 1: the result had to be computed again.
MSCTX_API int msctx_run(
    const char* isa, int index, const msctx::ConvProblem*, int op, void* x, void* w, void* y, int channels_last, const msctx::Epilogue*, int threads);
MSCTX_API void msctx_fingerprint(const char* isa, const void* data, int64_t bytes, int threads, uint64_t* low_and_high);
// The statistics of each piece of `count` values. Whether any is not finite.
MSCTX_API int msctx_statistics(const char* isa, int dtype, const void* data, int64_t count, int threads, msctx::Statistics* pieces);
