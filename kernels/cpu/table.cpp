// Every algorithm, by direction and the name that asks for it, in order of priority: what `normal` looks at first stands first.

#include "msctx/table.h"

namespace msctx::MSCTX_ISA {

extern const ConvAlgorithm conv_algo_0, conv_algo_3, conv_direct, conv_fft, conv_fft_tiling, conv_gemm, conv_implicit_gemm,
    conv_implicit_precomp_gemm, conv_reference, conv_winograd, conv_winograd_nonfused;

namespace {

using enum Direction;

Merit fair(const ConvProblem&, Op) { return Merit::fair; }
Merit last_resort(const ConvProblem&, Op) { return Merit::last_resort; }

// A transform pays when many channels share it, and the image holds a few tiles.
Merit winograd(const ConvProblem& p, Op) {
  const bool pays = group_c(p) >= 16 && group_k(p) >= 16 && p.out[1] >= 8 && p.out[2] >= 8;
  return pays ? Merit::fair : Merit::last_resort;
}

constexpr ConvRow rows[] = {
    {fprop, "winograd", &conv_winograd, winograd},
    {fprop, "winograd_nonfused", &conv_winograd_nonfused, winograd},
    {fprop, "implicit_precomp_gemm", &conv_implicit_precomp_gemm, fair},
    {fprop, "implicit_gemm", &conv_implicit_gemm, fair},
    {fprop, "direct", &conv_direct, fair},
    {fprop, "gemm", &conv_gemm, fair},
    {fprop, "fft_tiling", &conv_fft_tiling, last_resort},
    {fprop, "fft", &conv_fft, last_resort},
    {fprop, "reference", &conv_reference, last_resort},

    {dgrad, "winograd", &conv_winograd, winograd},
    {dgrad, "winograd_nonfused", &conv_winograd_nonfused, winograd},
    {dgrad, "algo_1", &conv_gemm, fair},
    {dgrad, "algo_0", &conv_algo_0, last_resort},
    {dgrad, "fft_tiling", &conv_fft_tiling, last_resort},
    {dgrad, "fft", &conv_fft, last_resort},
    {dgrad, "reference", &conv_reference, last_resort},

    {wgrad, "winograd_nonfused", &conv_winograd_nonfused, winograd},
    {wgrad, "algo_1", &conv_gemm, fair},
    {wgrad, "algo_3", &conv_algo_3, last_resort},
    {wgrad, "algo_0", &conv_algo_0, last_resort},
    {wgrad, "fft_tiling", &conv_fft_tiling, last_resort},
    {wgrad, "fft", &conv_fft, last_resort},
    {wgrad, "reference", &conv_reference, last_resort},
};

#define MSCTX_TEXT_OF(x) #x
#define MSCTX_TEXT(x) MSCTX_TEXT_OF(x)
constexpr ConvTable all = {MSCTX_TEXT(MSCTX_ISA), rows, sizeof rows / sizeof rows[0]};

}  // namespace

const ConvTable& table() { return all; }

}  // namespace msctx::MSCTX_ISA
