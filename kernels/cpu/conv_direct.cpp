// direct: loops over the window for a strip of output channels and a row of output positions, without any matrix. No workspace.

#include "msctx/bounds.h"
#include "msctx/lowering.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {
namespace direct_loops {
namespace {

constexpr int64_t strip = 8;        // output channels that share a loaded vector of the input

// One vector of the input row under a tap: element `start` and each next one `step` further; zeros outside the row, and all zeros when
// the row itself lies in the padding (row == nullptr).
static inline Vec window_vector(const float* row, int64_t start, int64_t step, int64_t extent, int64_t count) {
  if (row == nullptr) return Vec::zero();
  if (step == 1 && start >= 0 && start + count <= extent) return Vec::load(row + start, int(count));
  float lanes[Vec::width] = {};
  int64_t begin, end;
  inside(start, step, extent, count, begin, end);
  for (int64_t j = begin; j < end; j++) lanes[j] = row[start + j * step];
  return Vec::load(lanes);
}

struct Direct {
  const ConvProblem& p;
  const float *x, *w;
  float* y;
  const int64_t gc = group_c(p), gk = group_k(p), taps = volume(p.window), in = volume(p.in), out = volume(p.out);

  // `channels` output channels from k on, output row h, `count` positions from v on.
  template <int64_t channels>
  void vector(int64_t n, int64_t k, int64_t h, int64_t v, int64_t count) const {
    Vec total[channels], sum[channels];
    for (int64_t i = 0; i < channels; i++) total[i] = sum[i] = Vec::zero();
    const float* weights = w + k * gc * taps;
    int64_t summed = 0;
    for (int64_t c = 0; c < gc; c++) {
      const float* plane = x + (n * p.c + k / gk * gc + c) * in;
      for (int64_t r = 0; r < p.window[1]; r++) {
        const int64_t ih = h * p.stride[1] - p.pad[1] + r * p.dilation[1];
        const float* row = ih >= 0 && ih < p.in[1] ? plane + ih * p.in[2] : nullptr;
        for (int64_t s = 0; s < p.window[2]; s++) {
          const Vec right = window_vector(row, v * p.stride[2] - p.pad[2] + s * p.dilation[2], p.stride[2], p.in[2], count);
          const float* weight = weights + c * taps + r * p.window[2] + s;
#pragma GCC unroll 8
          for (int64_t i = 0; i < channels; i++) sum[i] = fma(Vec::all(weight[i * gc * taps]), right, sum[i]);
          if (++summed == depth_block) {
            summed = 0;
            for (int64_t i = 0; i < channels; i++) {
              total[i] = total[i] + sum[i];
              sum[i] = Vec::zero();
            }
          }
        }
      }
    }
    for (int64_t i = 0; i < channels; i++)
      (total[i] + sum[i]).store(y + (n * p.k + k + i) * out + h * p.out[2] + v, int(count));
  }

  void row(int64_t n, int64_t k, int64_t channels, int64_t h) const {
    for (int64_t v = 0; v < p.out[2]; v += Vec::width) {
      const int64_t count = smaller(Vec::width, p.out[2] - v);
      if (channels == strip)
        vector<strip>(n, k, h, v, count);
      else
        for (int64_t i = 0; i < channels; i++) vector<1>(n, k + i, h, v, count);
    }
  }
};

bool run(const ConvProblem& p, Op, const ConvTensors& t, const Prepared&, void*, const Parallel& parallel) {
  const Direct direct{p, static_cast<const float*>(t.x), static_cast<const float*>(t.w), static_cast<float*>(t.y)};
  const int64_t gk = group_k(p), strips = divide_up(gk, strip);
  parallel_for(parallel, p.n * p.groups * strips * p.out[1], [&](int64_t task, int) {
    const int64_t h = task % p.out[1], s = task / p.out[1] % strips, g = task / p.out[1] / strips % p.groups;
    direct.row(task / p.out[1] / strips / p.groups, g * gk + s * strip, smaller(strip, gk - s * strip), h);
  });
  return true;
}

}  // namespace
}  // namespace direct_loops

extern const ConvAlgorithm conv_direct = {
    .name = "direct",
    .reasons = forward_reasons,
    .error = gemm_error,
    .run = direct_loops::run,
};

}  // namespace msctx::MSCTX_ISA
