// Every algorithm that runs on AMX, in order of priority; the rows of ../table.cpp follow them.

#include "msctx/table.h"

namespace msctx::MSCTX_ISA {

extern const ConvAlgorithm conv_tiles_bf16x3, conv_tiles_bf16x6, conv_tiles_bf16x9, conv_tiles_gemm, conv_tiles_gemm_tf32, conv_tiles_int8x6,
    conv_tiles_wgrad, conv_tiles_wgrad_tf32, conv_tiles_winograd, conv_tiles_winograd_nonfused, conv_fp16_gemm, conv_fp16_gemm_tf32,
    conv_fp16_wgrad, conv_fp16_wgrad_tf32, conv_fp16_winograd, conv_fp16_winograd_nonfused;

namespace {

constexpr Direction fprop = Direction::fprop, dgrad = Direction::dgrad, wgrad = Direction::wgrad, matmul = Direction::matmul;

// Weights change with every step of a training, and so are packed for each gradient of x: its positions must outweigh that, and taps
// share what is split.
bool outweighs_packing(const ConvProblem& p, Op op) {
  return op == Op::forward || (volume(p.window) >= 9 && p.n * volume(p.in) >= 400);
}

// Transforms in float32 are faster still: Fourier's for large windows, Winograd's sums over many tiles.
bool better_by_fft(const ConvProblem& p) {
  const int64_t channels = smaller(group_c(p), group_k(p));
  return smaller(p.window[1], p.window[2]) >= 9 && has_unit(p.stride) && channels >= 16 && smaller(p.out[1], p.out[2]) >= 28;
}
bool better_by_winograd(const ConvProblem& p) {
  const int64_t tiles = p.n * divide_up(p.out[1], 4) * divide_up(p.out[2], 4);
  return volume(p.window) == 9 && has_unit(p.stride) && p.groups == 1 && smaller(p.c, p.k) >= 64 && tiles >= 48;
}

// What `normal` expects, from the figures of bench/convolutions.py: many channels, and enough work for the values' being split.
Merit gemm(const ConvProblem& p, Op op) {
  const int64_t channels = smaller(group_c(p), group_k(p)), taps = volume(p.window);
  const bool much = p.n * p.c / p.groups * p.k * taps * volume(p.out) >= int64_t(1) << 24;
  const bool slow_in_torch = op == Op::backward_data && p.groups == 1 && p.c < 32 && p.k >= 32;  // gradients of images
  if (!much || !outweighs_packing(p, op)) return Merit::fair;
  if (better_by_fft(p)) return Merit::runner_up;
  return (taps >= 9 ? channels >= 32 || slow_in_torch : channels >= 256) ? Merit::beats_torch : Merit::fair;
}
// The sums over positions are read and written for each chunk of them: it pays when they are many, and where taps share the split values.
Merit wgrad_gemm_tf32(const ConvProblem& p, Op) {
  const bool much = volume(p.window) >= 9 && p.n * volume(p.out) >= 128;
  if (!much || smaller(group_c(p), group_k(p)) < 32) return Merit::fair;
  return better_by_fft(p) ? Merit::runner_up : Merit::beats_torch;
}
Merit wgrad_gemm(const ConvProblem& p, Op op) {
  const Merit merit = wgrad_gemm_tf32(p, op);
  return merit == Merit::beats_torch && better_by_winograd(p) ? Merit::runner_up : merit;
}

// Winograd's transforms pay when many channels share them; that it reads 36 points of each window, not 9 taps, when many tiles do.
// Where TF32 is allowed, nothing is faster than its products: those come first.
bool winograd_pays(const ConvProblem& p, Op op) {
  const bool forward = op == Op::forward;
  const int64_t channels = smaller(group_c(p), group_k(p));
  const int64_t tiles = p.n * divide_up(forward ? p.out[1] : p.in[1], 4) * divide_up(forward ? p.out[2] : p.in[2], 4);
  return channels >= 48 && tiles >= (forward ? 16 : 128) && 12 * tiles >= channels;
}
// Tiles of more channels do not stay in the second cache beside the windows.
bool stays(const ConvProblem& p, Op op) { return (op == Op::forward ? group_c(p) : group_k(p)) <= 320; }
Merit winograd(const ConvProblem& p, Op op) { return winograd_pays(p, op) && stays(p, op) ? Merit::beats_torch : Merit::fair; }
Merit winograd_nonfused(const ConvProblem& p, Op op) { return winograd_pays(p, op) ? Merit::beats_torch : Merit::fair; }

Merit fair(const ConvProblem&, Op) { return Merit::fair; }

// What a unit's algorithms are: with parts of integers, or of float16.
struct Algorithms {
  const ConvAlgorithm *gemm, *gemm_tf32, *wgrad, *wgrad_tf32, *winograd, *winograd_nonfused;
  struct {
    const char* name;
    const ConvAlgorithm* by;
  } products[5];
};
constexpr Algorithms of_integers{&conv_tiles_gemm, &conv_tiles_gemm_tf32, &conv_tiles_wgrad, &conv_tiles_wgrad_tf32,
                                 &conv_tiles_winograd, &conv_tiles_winograd_nonfused,
                                 {{"int8x6", &conv_tiles_int8x6}, {"bf16x6", &conv_tiles_bf16x6}, {"bf16x9", &conv_tiles_bf16x9},
                                  {"bf16x3", &conv_tiles_bf16x3}}};
constexpr Algorithms of_float16{&conv_fp16_gemm, &conv_fp16_gemm_tf32, &conv_fp16_wgrad, &conv_fp16_wgrad_tf32,
                                &conv_fp16_winograd, &conv_fp16_winograd_nonfused,
                                {{"fp16x3", &conv_fp16_gemm}, {"int8x6", &conv_tiles_int8x6}, {"bf16x6", &conv_tiles_bf16x6},
                                 {"bf16x9", &conv_tiles_bf16x9}, {"bf16x3", &conv_tiles_bf16x3}}};

template <const Algorithms& of>
constexpr ConvRow rows[] = {
    {fprop, "implicit_precomp_gemm", of.gemm_tf32, gemm},
    {fprop, "winograd", of.winograd, winograd},
    {fprop, "winograd_nonfused", of.winograd_nonfused, winograd_nonfused},
    {fprop, "implicit_precomp_gemm", of.gemm, gemm},
    {fprop, "implicit_gemm", of.gemm_tf32, gemm},
    {fprop, "implicit_gemm", of.gemm, gemm},

    {dgrad, "algo_1", of.gemm_tf32, gemm},
    {dgrad, "winograd", of.winograd, winograd},
    {dgrad, "winograd_nonfused", of.winograd_nonfused, winograd_nonfused},
    {dgrad, "algo_1", of.gemm, gemm},

    {wgrad, "algo_1", of.wgrad_tf32, wgrad_gemm_tf32},
    {wgrad, "algo_1", of.wgrad, wgrad_gemm},

    {matmul, "tf32", of.gemm_tf32, gemm},
    {matmul, of.products[0].name, of.products[0].by, gemm},
    {matmul, of.products[1].name, of.products[1].by, fair},
    {matmul, of.products[2].name, of.products[2].by, fair},
    {matmul, of.products[3].name, of.products[3].by, fair},
    {matmul, of.products[4].name, of.products[4].by, fair},  // not of integers, which have no more
};
constexpr int count = sizeof rows<of_integers> / sizeof(ConvRow);

#ifdef MSCTX_EMULATED_TILES
#define MSCTX_NAME(name) name "_emulated"
#else
#define MSCTX_NAME(name) name
#endif
constexpr ConvTable integers = {MSCTX_NAME("amx"), rows<of_integers>, count - 1};
constexpr ConvTable float16 = {MSCTX_NAME("amx_fp16"), rows<of_float16>, count};

}  // namespace

const ConvTable& table() { return integers; }
const ConvTable& table_of_float16() { return float16; }

}  // namespace msctx::MSCTX_ISA
