// fft: one Fourier transform of each whole plane (each phase of it, where there are strides), products of spectra, and back.
// The cost of the products does not depend on the size of the window; the spectra of all weights are held at once.

#include "msctx/spectral.h"

namespace msctx::MSCTX_ISA {
namespace fft {
namespace {

// One tile, with the indices of the whole. The sums are over i + v for all outputs i and taps v; from `length` on this wraps
// around to 0 and the following. That is right as long as x has no elements at either: the padding in front of x is also the
// one behind it. (It holds for the backward operations as well, which are sums over the same i, v and i + v.)
Tiles whole(const ConvProblem& p, Op, int axis) {
  const Span x = image_span(p, axis);
  const int64_t taps = most_taps(p, axis), outputs = most_outputs(p, axis);
  const int64_t least = larger(larger(x.end, outputs + taps - 1 - x.begin), larger(outputs, taps));
  const int64_t length = good_length(axis, least);
  return {length, 1, 0, 0, 0, length, 0, length};
}

}  // namespace
}  // namespace fft

extern const ConvAlgorithm conv_fft = Spectral<fft::whole>::called("fft");

}  // namespace msctx::MSCTX_ISA
