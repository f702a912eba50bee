// Every algorithm that runs on the matrix unit, in order of priority; the rows of ../table.cpp follow them.

#include "msctx/table.h"

namespace msctx::MSCTX_ISA {

extern const ConvAlgorithm conv_tiles_gemm, conv_tiles_gemm_tf32, conv_tiles_winograd, conv_tiles_winograd_nonfused;

namespace {

constexpr Direction fprop = Direction::fprop, dgrad = Direction::dgrad;

Merit fair(const ConvProblem&, Op) { return Merit::fair; }
Merit beats(const ConvProblem&, Op) { return Merit::beats_torch; }

constexpr ConvRow rows[] = {
    {fprop, "winograd", &conv_tiles_winograd, fair},
    {fprop, "winograd_nonfused", &conv_tiles_winograd_nonfused, fair},
    {fprop, "implicit_precomp_gemm", &conv_tiles_gemm_tf32, beats},
    {fprop, "implicit_precomp_gemm", &conv_tiles_gemm, beats},
    {fprop, "implicit_gemm", &conv_tiles_gemm_tf32, beats},
    {fprop, "implicit_gemm", &conv_tiles_gemm, beats},

    {dgrad, "winograd", &conv_tiles_winograd, fair},
    {dgrad, "winograd_nonfused", &conv_tiles_winograd_nonfused, fair},
    {dgrad, "algo_1", &conv_tiles_gemm_tf32, beats},
    {dgrad, "algo_1", &conv_tiles_gemm, beats},
};

#define MSCTX_TEXT_OF(x) #x
#define MSCTX_TEXT(x) MSCTX_TEXT_OF(x)
constexpr ConvTable all = {MSCTX_TEXT(MSCTX_ISA), rows, sizeof rows / sizeof rows[0]};

}  // namespace

const ConvTable& table() { return all; }

}  // namespace msctx::MSCTX_ISA
