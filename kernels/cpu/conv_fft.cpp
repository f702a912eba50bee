// fft: one Fourier transform of each whole plane (each phase of it, where there are strides), products of spectra, and back.
// The cost of the products does not depend on the size of the window; the spectra of all weights are held at once.

#include "msctx/spectral.h"

namespace msctx::MSCTX_ISA {
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

void reasons(const ConvProblem& p, Op, Reasons& reasons) {
  reasons.add_if(!is_2d_f32(p), "it computes 2-D float32 convolutions only");
}

size_t workspace(const ConvProblem& p, Op op, int threads) { return spectral_workspace(p, op, threads, whole); }

// Measured: 1.4e-6, and 5.6e-6 for weights, of which there may be so few that all nearly cancel.
double error(const ConvProblem&, Op op) { return op == Op::backward_weight ? 1e-5 : 5e-6; }

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void* workspace, const Parallel& parallel) {
  run_spectral(p, op, t, workspace, parallel, whole);
  return true;
}

}  // namespace

extern const ConvAlgorithm conv_fft;
const ConvAlgorithm conv_fft = {
    .name = "fft",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = true,
    .reasons = reasons,
    .workspace = workspace,
    .error = error,
    .run = run,
    .spreads_nonfinite = true,
};

}  // namespace msctx::MSCTX_ISA
