// Sums of magnitudes, in float64, of float32 problems.
#include <algorithm>
#include <cmath>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

// A result is a sum over taps, of a weight gradient over positions of y: `free`. Where the result, at `known`, meets them along an axis.
bool meets(const ConvProblem& p, Op op, int axis, int64_t known, int64_t free, int64_t& other) {
  const int64_t stride = p.stride[axis], pad = p.pad[axis], dilation = p.dilation[axis];
  if (op == Op::backward_data) {
    const int64_t at = known + pad - free * dilation;
    other = at / stride;
    return at >= 0 && at % stride == 0 && other < p.out[axis];
  }
  other = op == Op::forward ? known * stride + free * dilation - pad : free * stride + known * dilation - pad;
  return other >= 0 && other < p.in[axis];
}
// Calls body(free, other) with flat places: taps or positions of y, and positions of x, of backward_data of y.
template <class Body>
void for_meetings(const ConvProblem& p, Op op, int64_t known, const Body& body) {
  const int64_t* const results = op == Op::forward ? p.out : op == Op::backward_data ? p.in : p.window;
  const int64_t* const frees = op == Op::backward_weight ? p.out : p.window;
  const int64_t* const others = op == Op::backward_data ? p.out : p.in;
  const int64_t z = known / (results[1] * results[2]), y = known / results[2] % results[1], x = known % results[2];
  int64_t oz, oy, ox;
  for (int64_t fz = 0; fz < frees[0]; fz++) {
    if (!meets(p, op, 0, z, fz, oz)) continue;
    for (int64_t fy = 0; fy < frees[1]; fy++) {
      if (!meets(p, op, 1, y, fy, oy)) continue;
      for (int64_t fx = 0; fx < frees[2]; fx++)
        if (meets(p, op, 2, x, fx, ox)) body((fz * frees[1] + fy) * frees[2] + fx, (oz * others[1] + oy) * others[2] + ox);
    }
  }
}

// x or y.
struct Images {
  const float* data;
  int64_t channels, positions;
  bool channels_last;
  double at(int64_t image, int64_t channel, int64_t position) const {
    const int64_t in_image = channels_last ? position * channels + channel : channel * positions + position;
    return std::fabs(double(data[image * channels * positions + in_image]));
  }
};
Images x_of(const ConvProblem& p, const ConvTensors& t) { return {static_cast<const float*>(t.x), p.c, volume(p.in), t.channels_last}; }
Images y_of(const ConvProblem& p, const ConvTensors& t) { return {static_cast<const float*>(t.y), p.k, volume(p.out), t.channels_last}; }

// Of the factors of a result: the sum of their magnitudes, and how many are not zero.
struct Factors {
  double sum = 0.0, count = 0.0;
  void add(double magnitude) { sum += magnitude, count += magnitude > 0.0 ? 1.0 : 0.0; }
  void add(const Factors& more) { sum += more.sum, count += more.count; }
  void raise_to(const Factors& other) { sum = std::max(sum, other.sum), count = std::max(count, other.count); }
};

// For each of `tasks`, and of all of them the largest.
template <class Of>
Factors largest_of(int64_t tasks, const Parallel& parallel, const Of& of) {
  std::vector<Factors> found(size_t(tasks), Factors{});
  std::atomic<bool> all_done{true};
  parallel_for(parallel, tasks, [&](int64_t task, int) {
    if (!done([&] { found[size_t(task)] = of(task); })) all_done = false;
  });
  if (!all_done) throw std::bad_alloc();
  Factors all;
  for (const Factors& each : found) all.raise_to(each);
  return all;
}

// Of weight gradients: of a channel, at every `stride`th position, which is what a tap meets.
Factors of_channels(const Images& images, int64_t n, const int64_t extent[3], const int64_t stride[3], const Parallel& parallel) {
  return largest_of(images.channels, parallel, [&](int64_t channel) {
    std::vector<Factors> phases(size_t(volume(stride)), Factors{});
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < images.positions; j++) {
        const int64_t z = j / (extent[1] * extent[2]), y = j / extent[2] % extent[1], x = j % extent[2];
        const int64_t phase = (z % stride[0] * stride[1] + y % stride[1]) * stride[2] + x % stride[2];
        phases[size_t(phase)].add(images.at(i, channel, j));
      }
    Factors most;
    for (const Factors& each : phases) most.raise_to(each);
    return most;
  });
}
// Of forward and backward_data: of all that a result reads of the images.
Factors of_windows(const ConvProblem& p, Op op, const Images& images, const Parallel& parallel) {
  const int64_t each = images.channels / p.groups, results = volume(op == Op::forward ? p.out : p.in);
  return largest_of(p.n * p.groups, parallel, [&](int64_t task) {
    const int64_t image = task / p.groups, first = task % p.groups * each;
    std::vector<Factors> at(size_t(images.positions), Factors{});
    if (images.channels_last) {
      for (int64_t j = 0; j < images.positions; j++)
        for (int64_t c = first; c < first + each; c++) at[size_t(j)].add(images.at(image, c, j));
    } else {
      for (int64_t c = first; c < first + each; c++)
        for (int64_t j = 0; j < images.positions; j++) at[size_t(j)].add(images.at(image, c, j));
    }
    Factors most;
    for (int64_t known = 0; known < results; known++) {
      Factors sum;
      for_meetings(p, op, known, [&](int64_t, int64_t other) { sum.add(at[size_t(other)]); });
      most.raise_to(sum);
    }
    return most;
  });
}
// Of all weights that a result of forward or backward_data reads at most.
Factors of_weights(const ConvProblem& p, Op op, const float* w, const Parallel& parallel) {
  const int64_t gc = group_c(p), gk = group_k(p), window = volume(p.window);
  const bool forward = op == Op::forward;
  return largest_of(forward ? p.k : p.c, parallel, [&](int64_t channel) {
    const int64_t first = forward ? channel : channel / gc * gk, count = forward ? 1 : gk;
    Factors sum;
    for (int64_t k = first; k < first + count; k++) {
      const float* const from = w + k * gc * window + (forward ? 0 : channel % gc * window);
      for (int64_t i = 0; i < (forward ? gc * window : window); i++) sum.add(std::fabs(double(from[i])));
    }
    return sum;
  });
}

}  // namespace

double magnitude_at(const ConvProblem& p, Op op, const ConvTensors& t, int64_t image, int64_t channel, int64_t place) {
  const int64_t gc = group_c(p), gk = group_k(p), window = volume(p.window);
  const Images x = x_of(p, t), y = y_of(p, t);
  const auto* const w = static_cast<const float*>(t.w);
  double sum = 0.0;
  if (op == Op::backward_weight) {
    const int64_t c = channel / gk * gc + place / window;
    for_meetings(p, op, place % window, [&](int64_t of_y, int64_t of_x) {
      for (int64_t i = 0; i < p.n; i++) sum += x.at(i, c, of_x) * y.at(i, channel, of_y);
    });
    return sum;
  }
  const bool forward = op == Op::forward;
  const int64_t group = channel / (forward ? gk : gc), terms = forward ? gc : gk;
  for_meetings(p, op, place, [&](int64_t tap, int64_t other) {
    for (int64_t i = 0; i < terms; i++) {
      const int64_t source = group * terms + i, k = forward ? channel : source, c = forward ? i : channel % gc;
      sum += (forward ? x : y).at(image, source, other) * std::fabs(double(w[(k * gc + c) * window + tap]));
    }
  });
  return sum;
}

double lost_at_most(const ConvProblem& p, Op op, const ConvTensors& t, const Lost& lost, const Parallel& parallel) {
  Factors first, second;
  if (op == Op::backward_weight) {
    constexpr int64_t each[3] = {1, 1, 1};
    first = of_channels(x_of(p, t), p.n, p.in, p.stride, parallel);
    second = of_channels(y_of(p, t), p.n, p.out, each, parallel);
  } else {
    first = of_windows(p, op, op == Op::forward ? x_of(p, t) : y_of(p, t), parallel);
    second = of_weights(p, op, static_cast<const float*>(t.w), parallel);
  }
  return lost.each * std::min(first.count, second.count) + lost.of_first * first.sum + lost.of_second * second.sum;
}

}  // namespace msctx
