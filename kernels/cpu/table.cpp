// Every algorithm, by direction and the name that requests it, in order of priority: what `normal` looks at first stands first.

#include "msctx/table.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {

extern const ConvAlgorithm conv_algo_0, conv_algo_3, conv_depthwise, conv_direct, conv_fft, conv_fft_tiling, conv_gemm, conv_implicit_gemm,
    conv_implicit_precomp_gemm, conv_reference, conv_windows, conv_winograd, conv_winograd_nonfused, conv_product;
Fingerprint fingerprint(const void* data, int64_t bytes, const Parallel&);
void statistics(DType, const void* data, int64_t count, Statistics* pieces, const Parallel&);
bool has_nonfinite(DType, const void* data, int64_t count);
void peaks(const float* values, int64_t n, int64_t channels, int64_t positions, bool channels_last, int64_t* found, const Parallel&);
void finish(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);

namespace table_only {
namespace {

constexpr Direction fprop = Direction::fprop, dgrad = Direction::dgrad, wgrad = Direction::wgrad, matmul = Direction::matmul;

// What `normal` expects, from the figures of bench/convolutions.py (torch's own path is oneDNN's).

Merit fair(const ConvProblem&, Op) { return Merit::fair; }
Merit last_resort(const ConvProblem&, Op) { return Merit::last_resort; }

int64_t channels(const ConvProblem& p) { return smaller(group_c(p), group_k(p)); }
int64_t image(const ConvProblem& p) { return smaller(p.out[1], p.out[2]); }
int64_t taps(const ConvProblem& p) { return smaller(p.window[1], p.window[2]); }

// The transforms pay when many channels share them, and reading 36 points of each window, not 9 taps, when some tiles do; a weight
// gradient's also have to be added up, and windows are transformed anew for each gradient of x, since each step of a training changes them.
int64_t tiles(const ConvProblem& p, Op op) {
  const int64_t* size = op == Op::backward_data ? p.in : p.out;
  return p.n * divide_up(size[1], 4) * divide_up(size[2], 4);
}
bool winograd_pays(const ConvProblem& p, Op op) {
  const int64_t enough = op == Op::forward ? 16 : op == Op::backward_data ? 128 : 48;
  const int64_t shared = op == Op::backward_weight ? 64 : op == Op::forward && Vec::width == 16 ? 24 : 32;
  return taps(p) == 3 && channels(p) >= shared && tiles(p, op) >= enough;
}
Merit winograd_otherwise(const ConvProblem& p) { return channels(p) >= 16 && image(p) >= 8 ? Merit::fair : Merit::last_resort; }
// Blocks of tiles of more channels do not stay in the cache; and many blocks read the windows often.
Merit winograd(const ConvProblem& p, Op op) {
  const bool stays = larger(group_c(p), group_k(p)) <= 256 || (op == Op::forward && tiles(p, op) < 64);
  return winograd_pays(p, op) && stays ? Merit::beats_torch : winograd_otherwise(p);
}
Merit winograd_nonfused(const ConvProblem& p, Op op) {
  return winograd_pays(p, op) ? Merit::beats_torch : winograd_otherwise(p);
}

// Large windows; and where oneDNN has no good kernel: gradients of strided convolutions, weight gradients of few channels a group.
Merit fft_tiling(const ConvProblem& p, Op op) {
  const bool dense = channels(p) >= 16, strided = p.stride[1] > 1 && p.stride[2] > 1;
  if (dense && taps(p) >= 9 && image(p) >= 28) return Merit::beats_torch_by_far;
  const bool large = taps(p) >= 25 && image(p) >= 28;
  const bool few = p.groups > 1 && channels(p) <= 4 && taps(p) >= 5 && image(p) >= 28;
  const bool gradient = op == Op::backward_data && strided && taps(p) >= 5 && p.groups == 1 && image(p) >= 28;
  return large || gradient || (few && op == Op::backward_weight) ? Merit::beats_torch : Merit::last_resort;
}
Merit gemm(const ConvProblem& p, Op op) {
  const bool strided = p.dims == 2 && p.stride[1] > 1 && p.stride[2] > 1;
  return op == Op::backward_data && strided && taps(p) == 1 && channels(p) >= 64 ? Merit::beats_torch : Merit::fair;
}

// oneDNN has good kernels for small windows in channels_last of large images, none for weight gradients.
Merit depthwise(const ConvProblem& p, Op op) {
  const bool weight = op == Op::backward_weight, large = taps(p) >= 27, strided = p.stride[1] > 1 && p.stride[2] > 1;
  if (op == Op::forward && image(p) <= 28 && taps(p) <= (strided ? 5 : 3)) return Merit::beats_torch;
  if ((weight && taps(p) >= 7) || (large && (op == Op::backward_data || image(p) >= 28))) return Merit::beats_torch;
  return large || taps(p) < 13 ? Merit::beats_torch_channels_first : Merit::fair;
}

bool is_amd() {
#ifdef __x86_64__
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

// By kept panels: torch packs the weight in each call, which counts where rows are few; of one to three it reads the weight as fast. MKL uses
// no vectors of 16 lanes on AMD's processors, and takes twice as long there for two rows. A call of ours takes a microsecond more.
Merit by_panels(const ConvProblem& p, Op) {
  const bool is_alone = Vec::width == 16 && is_amd();
  const int64_t rows = p.n * volume(p.in), few = Vec::width == 16 ? 512 : Vec::width == 8 ? 64 : 0;
  const bool is_size = rows >= (is_alone ? 2 : 4) && (is_alone || rows <= few) && smaller(p.c, p.k) >= 64 && larger(p.c, p.k) >= 128;
  return is_size && p.dims == 2 && p.dtype == DType::f32 ? Merit::beats_torch : Merit::fair;
}

// Before an epilogue, torch's path is a call of oneDNN and a pass over the result. With vectors of 8 lanes or more ours takes less time for
// windows of 1x1, few channels of the input, and small depthwise windows.
Merit if_finished(Merit otherwise, bool pays) {
  return Vec::width >= 8 && pays && otherwise < Merit::beats_torch ? Merit::beats_torch_finished : otherwise;
}
Merit kept_panels(const ConvProblem& p, Op op) { return if_finished(by_panels(p, op), is_2d_f32(p)); }
Merit kept_windows(const ConvProblem& p, Op) { return if_finished(Merit::fair, taps(p) == 1 || (p.groups == 1 && p.c <= 4)); }
Merit kept_depthwise(const ConvProblem& p, Op op) { return if_finished(depthwise(p, op), taps(p) <= 5); }

constexpr ConvRow rows[] = {
    {fprop, "winograd", &conv_winograd, winograd},
    {fprop, "winograd_nonfused", &conv_winograd_nonfused, winograd_nonfused},
    {fprop, "implicit_gemm", &conv_product, fair, nullptr, kept_panels},
    {fprop, "implicit_gemm", &conv_windows, fair, nullptr, kept_windows},
    {fprop, "implicit_gemm", &conv_implicit_gemm, fair},
    {fprop, "implicit_precomp_gemm", &conv_implicit_precomp_gemm, fair},
    {fprop, "direct", &conv_depthwise, depthwise, nullptr, kept_depthwise},
    {fprop, "direct", &conv_direct, fair},
    {fprop, "gemm", &conv_gemm, fair},
    {fprop, "fft_tiling", &conv_fft_tiling, fft_tiling},
    {fprop, "fft", &conv_fft, last_resort},
    {fprop, "reference", &conv_reference, last_resort},

    {dgrad, "winograd", &conv_winograd, winograd},
    {dgrad, "winograd_nonfused", &conv_winograd_nonfused, winograd_nonfused},
    {dgrad, "algo_1", &conv_depthwise, depthwise},
    {dgrad, "algo_1", &conv_product, fair},
    {dgrad, "algo_1", &conv_gemm, gemm},
    {dgrad, "algo_0", &conv_algo_0, last_resort},
    {dgrad, "fft_tiling", &conv_fft_tiling, fft_tiling},
    {dgrad, "fft", &conv_fft, last_resort},
    {dgrad, "reference", &conv_reference, last_resort},

    {wgrad, "winograd_nonfused", &conv_winograd_nonfused, winograd_nonfused},
    {wgrad, "algo_1", &conv_depthwise, depthwise},
    {wgrad, "algo_1", &conv_gemm, gemm},
    {wgrad, "algo_3", &conv_algo_3, last_resort},
    {wgrad, "algo_0", &conv_algo_0, last_resort},
    {wgrad, "fft_tiling", &conv_fft_tiling, fft_tiling},
    {wgrad, "fft", &conv_fft, last_resort},
    {wgrad, "reference", &conv_reference, last_resort},

    {matmul, "strict", &conv_product, fair, nullptr, by_panels},
    {matmul, "reference", &conv_reference, last_resort},
};

#define MSCTX_TEXT_OF(x) #x
#define MSCTX_TEXT(x) MSCTX_TEXT_OF(x)
constexpr Passes passes = {fingerprint, statistics, has_nonfinite, peaks, finish};
constexpr ConvTable all = {MSCTX_TEXT(MSCTX_ISA), rows, sizeof rows / sizeof rows[0], &passes};

}  // namespace
}  // namespace table_only

const ConvTable& table() { return table_only::all; }

}  // namespace msctx::MSCTX_ISA
