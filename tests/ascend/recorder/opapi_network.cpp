// libopapi: what networks for images are made of: convolutions of two dimensions, batch norms, pooling, dropout.

#include <algorithm>

#include "opapi.h"

namespace {

using Values = std::vector<double>;

// A convolution of images: all numbers of it, and its tensors as plain values.
struct Convolution {
  int64_t images, groups, in_channels, height, width, out_channels, window[2], stride[2], padding[2], dilation[2], rows, columns;

  Convolution(const aclTensor& in, const aclTensor& weight, const aclTensor& out, const Sizes& s, const Sizes& p, const Sizes& d, int64_t g)
      : images(in.sizes[0]), groups(g), in_channels(in.sizes[1]), height(in.sizes[2]), width(in.sizes[3]), out_channels(out.sizes[1]),
        window{weight.sizes[2], weight.sizes[3]}, stride{s[0], s.back()}, padding{p[0], p.back()}, dilation{d[0], d.back()},
        rows(out.sizes[2]), columns(out.sizes[3]) {}

  // Calls a function for each product of an element of the input and a weight, with the place of each and of the result.
  template <class F>
  void products(F&& f) const {
    const int64_t in_group = in_channels / groups, out_group = out_channels / groups;
    for (int64_t n = 0; n < images; n++)
      for (int64_t k = 0; k < out_channels; k++)
        for (int64_t c = 0; c < in_group; c++)
          for (int64_t i = 0; i < window[0]; i++)
            for (int64_t j = 0; j < window[1]; j++) {
              const int64_t channel = n * in_channels + k / out_group * in_group + c;
              const int64_t at_weight = ((k * in_group + c) * window[0] + i) * window[1] + j;
              for (int64_t y = 0; y < rows; y++) {
                const int64_t row = y * stride[0] - padding[0] + i * dilation[0];
                if (row < 0 || row >= height) continue;
                for (int64_t x = 0; x < columns; x++) {
                  const int64_t column = x * stride[1] - padding[1] + j * dilation[1];
                  if (column < 0 || column >= width) continue;
                  f((channel * height + row) * width + column, at_weight, ((n * out_channels + k) * rows + y) * columns + x);
                }
              }
            }
  }
};

// What the matrix unit reads of a tensor.
Values seen(const aclTensor& tensor, int8_t cube) {
  Values found = values(tensor);
  if (tensor.dtype == ACL_FLOAT)
    for (double& value : found) value = as_unit_sees(value, cube);
  return found;
}

void only_images(const aclTensor& in, bool transposed) {
  if (in.sizes.size() == 4 && !transposed) return;
  std::puts("the recorder has no such convolution");
  std::abort();
}

// Calls a function with the channel of each element of a batch, in order.
template <class F>
void with_channels(const Sizes& sizes, F&& f) {
  const int64_t each = count({sizes.begin() + 2, sizes.end()});
  for (int64_t i = 0; i < count(sizes); i++) f(i, i / each % sizes[1]);
}

// Windows of pooling: for each result the place of the largest element that it sees, the first one where there are several.
std::vector<int64_t> largest(const aclTensor& in, const aclTensor& out, const Sizes& window, const Sizes& stride, const Sizes& padding,
                             const Sizes& dilation, const Values& x) {
  std::vector<int64_t> found;
  const int64_t height = in.sizes[in.sizes.size() - 2], width = in.sizes.back();
  const int64_t rows = out.sizes[out.sizes.size() - 2], columns = out.sizes.back();
  const Sizes& steps = stride.empty() ? window : stride;
  for (int64_t plane = 0; plane < count(out.sizes) / (rows * columns); plane++)
    for (int64_t y = 0; y < rows; y++)
      for (int64_t z = 0; z < columns; z++) {
        int64_t best = -1;
        for (int64_t i = 0; i < window[0]; i++)
          for (int64_t j = 0; j < window.back(); j++) {
            const int64_t row = y * steps[0] - padding[0] + i * dilation[0], column = z * steps.back() - padding.back() + j * dilation.back();
            if (row < 0 || row >= height || column < 0 || column >= width) continue;
            const int64_t at = (plane * height + row) * width + column;
            if (best < 0 || x[at] > x[best]) best = at;
          }
        found.push_back(best);
      }
  return found;
}

// A number for each element, from a seed and the number of those before: SplitMix64, whose steps depend on nothing but these.
uint64_t drawn(uint64_t seed, uint64_t offset, uint64_t i) {
  uint64_t z = seed * 0x9e3779b97f4a7c15 + (offset << 32) + (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

extern "C" {

EXECUTES(aclnnConvolution)(const aclTensor* in, const aclTensor* weight, const aclTensor* bias, const aclIntArray* stride,
                           const aclIntArray* padding, const aclIntArray* dilation, bool transposed, const aclIntArray*, int64_t groups,
                           aclTensor* out, int8_t cube, LATER) {
  ON_MATRIX_UNIT(in, cube);
  only_images(*in, transposed);
  const Convolution convolution(*in, *weight, *out, *stride, *padding, *dilation, groups);
  return later(workspace, executor, [=, in = *in, weight = *weight, out = *out, has_bias = bias != nullptr, bias = bias ? *bias : *in] {
    const Values x = seen(in, cube), w = seen(weight, cube);
    Values y(count(out.sizes));
    convolution.products([&](int64_t at_x, int64_t at_w, int64_t at_y) { y[at_y] += x[at_x] * w[at_w]; });
    if (has_bias) {
      const Values added = values(bias);
      with_channels(out.sizes, [&](int64_t i, int64_t channel) { y[i] += added[channel]; });
    }
    fill(out, y);
  });
}

EXECUTES(aclnnConvolutionBackward)(const aclTensor* grad, const aclTensor* in, const aclTensor* weight, const aclIntArray*,
                                   const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool transposed,
                                   const aclIntArray*, int groups, const aclBoolArray* mask, int8_t cube, aclTensor* of_in,
                                   aclTensor* of_weight, aclTensor* of_bias, LATER) {
  ON_MATRIX_UNIT(in, cube);
  only_images(*in, transposed);
  const Convolution convolution(*in, *weight, *grad, *stride, *padding, *dilation, groups);
  const auto wanted = [&](int i, const aclTensor* t) { return (*mask)[i] && t ? std::vector<aclTensor>{*t} : std::vector<aclTensor>(); };
  return later(workspace, executor,
               [=, grad = *grad, in = *in, weight = *weight, in_ = wanted(0, of_in), weight_ = wanted(1, of_weight), bias_ = wanted(2, of_bias)] {
    const Values g = seen(grad, cube), x = seen(in, cube), w = seen(weight, cube);
    Values gx(x.size()), gw(w.size()), gb(grad.sizes[1]);
    if (!in_.empty()) convolution.products([&](int64_t at_x, int64_t at_w, int64_t at_y) { gx[at_x] += g[at_y] * w[at_w]; });
    if (!weight_.empty()) convolution.products([&](int64_t at_x, int64_t at_w, int64_t at_y) { gw[at_w] += g[at_y] * x[at_x]; });
    with_channels(grad.sizes, [&](int64_t i, int64_t channel) { gb[channel] += g[i]; });
    for (const auto& out : in_) fill(out, gx);
    for (const auto& out : weight_) fill(out, gw);
    for (const auto& out : bias_) fill(out, gb);
  });
}

EXECUTES(aclnnBatchNorm)(const aclTensor* in, const aclTensor* weight, const aclTensor* bias, aclTensor* running_mean,
                         aclTensor* running_variance, bool training, double momentum, double eps, aclTensor* out, aclTensor* save_mean,
                         aclTensor* save_scale, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, [=, in = *in, weight = *weight, bias = *bias, running_mean = *running_mean,
                                     running_variance = *running_variance, out = *out, save_mean = *save_mean, save_scale = *save_scale] {
    const Values x = values(in), w = values(weight), b = values(bias);
    Values mean = values(running_mean), variance = values(running_variance), scale, y(x.size());
    if (training) {
      const double many = static_cast<double>(x.size() / mean.size());
      Values own(mean.size()), square(mean.size());
      with_channels(in.sizes, [&](int64_t i, int64_t c) { own[c] += x[i] / many; });
      with_channels(in.sizes, [&](int64_t i, int64_t c) { square[c] += (x[i] - own[c]) * (x[i] - own[c]) / many; });
      for (size_t c = 0; c < mean.size(); c++) {
        mean[c] += momentum * (own[c] - mean[c]);
        variance[c] += momentum * (square[c] * many / (many - 1) - variance[c]);
      }
      fill(running_mean, mean);
      fill(running_variance, variance);
      mean = own;
      variance = square;
    }
    for (const double v : variance) scale.push_back(1 / std::sqrt(v + eps));
    with_channels(in.sizes, [&](int64_t i, int64_t c) { y[i] = (x[i] - mean[c]) * scale[c] * w[c] + b[c]; });
    fill(out, y);
    if (!training) return;
    fill(save_mean, mean);
    fill(save_scale, scale);
  });
}

EXECUTES(aclnnBatchNormBackward)(const aclTensor* grad, const aclTensor* in, const aclTensor* weight, const aclTensor*, const aclTensor*,
                                 const aclTensor* mean, const aclTensor* scale, bool training, double, const aclBoolArray*, aclTensor* of_in,
                                 aclTensor* of_weight, aclTensor* of_bias, LATER) {
  OPERATOR(name(in->dtype));
  if (!training) {
    std::puts("the recorder has gradients of batch norms in training alone");
    std::abort();
  }
  return later(workspace, executor, [=, grad = *grad, in = *in, weight = *weight, mean = *mean, scale = *scale, of_in = *of_in,
                                     of_weight = *of_weight, of_bias = *of_bias] {
    const Values g = values(grad), w = values(weight), m = values(mean), s = values(scale);
    Values x = values(in), gx(x.size()), gw(m.size()), gb(m.size());
    with_channels(in.sizes, [&](int64_t i, int64_t c) {
      x[i] = (x[i] - m[c]) * s[c];
      gw[c] += g[i] * x[i];
      gb[c] += g[i];
    });
    const double many = static_cast<double>(x.size() / m.size());
    with_channels(in.sizes, [&](int64_t i, int64_t c) { gx[i] = w[c] * s[c] * (g[i] - gb[c] / many - x[i] * gw[c] / many); });
    fill(of_in, gx);
    fill(of_weight, gw);
    fill(of_bias, gb);
  });
}

// The mask is for the gradient, which finds the largest elements anew: torch_npu does not read it.
EXECUTES(aclnnMaxPool2dWithMask)(const aclTensor* in, const aclIntArray* window, const aclIntArray* stride, const aclIntArray* padding,
                                 const aclIntArray* dilation, bool, aclTensor* out, aclTensor*, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, [=, in = *in, out = *out, w = *window, s = *stride, p = *padding, d = *dilation] {
    const Values x = values(in);
    Values y;
    for (const int64_t at : largest(in, out, w, s, p, d, x)) y.push_back(x[at]);
    fill(out, y);
  });
}

EXECUTES(aclnnMaxPool2dWithMaskBackward)(const aclTensor* grad, const aclTensor* in, const aclTensor*, const aclIntArray* window,
                                         const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool,
                                         aclTensor* out, LATER) {
  OPERATOR(name(in->dtype));
  return later(workspace, executor, [=, grad = *grad, in = *in, out = *out, w = *window, s = *stride, p = *padding, d = *dilation] {
    const Values x = values(in), g = values(grad);
    Values found(x.size());
    size_t next = 0;
    for (const int64_t at : largest(in, grad, w, s, p, d, x)) found[at] += g[next++];
    fill(out, found);
  });
}

// A bit for each element, which is 1 where it stays.
EXECUTES(aclnnDropoutGenMaskV2)(const aclIntArray* sizes, double share, int64_t seed, int64_t offset, aclDataType, aclTensor* out, LATER) {
  OPERATOR(share);
  const int64_t many = count(*sizes);
  return later(workspace, executor, [=, out = *out] {
    Values bytes(count(out.sizes));
    for (int64_t i = 0; i < many; i++)
      if (std::ldexp(static_cast<double>(drawn(seed, offset, i) >> 11), -53) >= share) bytes[i / 8] += 1 << i % 8;
    fill(out, bytes);
  });
}

EXECUTES(aclnnDropoutDoMask)(const aclTensor* in, const aclTensor* mask, double share, aclTensor* out, LATER) {
  OPERATOR(name(in->dtype), share);
  return later(workspace, executor, [=, in = *in, mask = *mask, out = *out] {
    const Values bytes = values(mask);
    Values found = values(in);
    for (size_t i = 0; i < found.size(); i++) found[i] *= (static_cast<int>(bytes[i / 8]) >> i % 8 & 1) / (1 - share);
    fill(out, found);
  });
}

}  // extern "C"
