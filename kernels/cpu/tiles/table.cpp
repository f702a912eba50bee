// Every algorithm that runs on the matrix unit, in order of priority; the rows of ../table.cpp follow them.

#include "msctx/table.h"

namespace msctx::MSCTX_ISA {

extern const ConvAlgorithm conv_tiles_gemm, conv_tiles_gemm_tf32, conv_tiles_wgrad, conv_tiles_wgrad_tf32;

namespace {

constexpr Direction fprop = Direction::fprop, dgrad = Direction::dgrad, wgrad = Direction::wgrad;

// What `normal` expects, from the figures of bench/convolutions.py: many channels, and enough work for the values' being split.
Merit gemm(const ConvProblem& p, Op) {
  const int64_t channels = smaller(group_c(p), group_k(p)), taps = volume(p.window);
  const bool much = p.n * p.c / p.groups * p.k * taps * volume(p.out) >= int64_t(1) << 24;
  return much && (taps >= 9 ? channels >= 32 : channels >= 256) ? Merit::beats_torch : Merit::fair;
}

constexpr ConvRow rows[] = {
    {fprop, "implicit_precomp_gemm", &conv_tiles_gemm_tf32, gemm},
    {fprop, "implicit_precomp_gemm", &conv_tiles_gemm, gemm},
    {fprop, "implicit_gemm", &conv_tiles_gemm_tf32, gemm},
    {fprop, "implicit_gemm", &conv_tiles_gemm, gemm},

    {dgrad, "algo_1", &conv_tiles_gemm_tf32, gemm},
    {dgrad, "algo_1", &conv_tiles_gemm, gemm},

    {wgrad, "algo_1", &conv_tiles_wgrad_tf32, gemm},
    {wgrad, "algo_1", &conv_tiles_wgrad, gemm},
};

#define MSCTX_TEXT_OF(x) #x
#define MSCTX_TEXT(x) MSCTX_TEXT_OF(x)
constexpr ConvTable all = {MSCTX_TEXT(MSCTX_ISA), rows, sizeof rows / sizeof rows[0]};

}  // namespace

const ConvTable& table() { return all; }

}  // namespace msctx::MSCTX_ISA
