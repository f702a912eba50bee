// fft_tiling: the planes are cut into small tiles, whose transforms stay in the cache; the spectra of the weights are those
// of a tile. Tiles overlap by the number of taps less one, and what wraps around within a tile falls into the overlap and is
// dropped.

#include "msctx/spectral.h"

namespace msctx::MSCTX_ISA {
namespace fft_tiling {
namespace {

// The length of the tiles: of 32 and 64 the one by which the fewest elements are transformed for `results` of them, if half of a
// tile or more can be results; twice the taps where these are too many for that. No more than there is to compute, though.
// Spectra of weights are as long, and reading those is what takes the time of a few images: they count as two tiles.
int64_t tile_length(int axis, int64_t results, int64_t taps) {
  const int64_t whole = good_length(axis, results + taps - 1);
  int64_t best = 0, least = 0;
  for (int64_t longest = 32; longest <= 64; longest *= 2) {
    if (longest - taps + 1 < longest / 2) continue;
    const int64_t length = smaller(longest, whole), work = (divide_up(results, length - taps + 1) + 2) * length;
    if (best != 0 && work >= least) continue;
    best = length;
    least = work;
  }
  return best != 0 ? best : smaller(good_length(axis, 2 * taps), whole);
}

// A tile of x gives the `step` results of y at its beginning, which reach less than `length` of it. A tile of y gives the
// `step` results of the gradient of x at its end, for these reach back. And for the weights' gradient, a tile of x is
// correlated with the `step` elements of y that reach nothing outside.
Tiles tiled(const ConvProblem& p, Op op, int axis) {
  const int64_t halo = most_taps(p, axis) - 1;
  const Span x = image_span(p, axis);
  const int64_t begin = op == Op::backward_data ? x.begin : 0;
  const int64_t results = op == Op::backward_data ? larger(1, x.end - x.begin) : most_outputs(p, axis);
  const int64_t length = tile_length(axis, results, halo + 1), step = length - halo, count = divide_up(results, step);
  if (op == Op::backward_data) return {length, count, begin - halo, step, halo, length, 0, length};
  return {length, count, 0, step, 0, length, 0, step};
}

}  // namespace
}  // namespace fft_tiling

extern const ConvAlgorithm conv_fft_tiling = Spectral<fft_tiling::tiled>::called("fft_tiling");

}  // namespace msctx::MSCTX_ISA
