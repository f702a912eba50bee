// A library with the functions of cuDNN 9 that msctx calls, for machines without CUDA: it computes on the host, in float64, with
// cuDNN's own limits and status codes as its documentation states them, and keeps a log of what it was told to run.
//
// It proves how msctx asks cuDNN, not what cuDNN answers: that the tests marked `cuda` show.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { ok = 0, bad_param = 2000, not_supported = 3000, not_supported_shape = 3002, failed = 5000 };

struct Tensor {
  int type = -1, dims = 0, size[8] = {}, stride[8] = {};
};
struct Filter {
  int type = -1, format = 0, dims = 0, size[8] = {};
};
struct Convolution {
  int dims = 0, pad[8] = {}, stride[8] = {}, dilation[8] = {}, type = 0, groups = 1, math = 0;
};

std::mutex lock;  // of the log: as in cuDNN, threads run at once
std::string log;
int broken_algorithm = -1;  // whose runs fail, though its queries do not
std::atomic<int> live = 0;  // descriptors

float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  float value;
  if (exponent == 0)
    value = float(mantissa) * 5.9604644775390625e-8f;
  else {
    const uint32_t bits = exponent == 31 ? 0x7f800000u | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13;
    std::memcpy(&value, &bits, 4);
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}
double get(const void* data, int type, int64_t i) {
  switch (type) {
    case 0: return static_cast<const float*>(data)[i];
    case 1: return static_cast<const double*>(data)[i];
    case 2: return double(half_to_float(static_cast<const uint16_t*>(data)[i]));
    default: {
      const uint32_t bits = uint32_t(static_cast<const uint16_t*>(data)[i]) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    }
  }
}
void put(void* data, int type, int64_t i, double value) {
  switch (type) {
    case 0: static_cast<float*>(data)[i] = float(value); break;
    case 1: static_cast<double*>(data)[i] = value; break;
    case 2: static_cast<_Float16*>(data)[i] = _Float16(value); break;
    default: {
      const float narrow = float(value);
      uint32_t bits;
      std::memcpy(&bits, &narrow, 4);
      static_cast<uint16_t*>(data)[i] = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
  }
}

int64_t offset(const Filter& f, const int* at) {
  int64_t found = 0;
  if (f.format == 0)
    for (int i = 0; i < f.dims; i++) found = found * f.size[i] + at[i];
  else {
    found = at[0];
    for (int i = 2; i < f.dims; i++) found = found * f.size[i] + at[i];
    found = found * f.size[1] + at[1];
  }
  return found;
}
int64_t offset(const Tensor& t, const int* at) {
  int64_t found = 0;
  for (int i = 0; i < t.dims; i++) found += int64_t(at[i]) * t.stride[i];
  return found;
}
template <class Shape>
int64_t volume(const Shape& shape) {
  int64_t all = 1;
  for (int i = 0; i < shape.dims; i++) all *= shape.size[i];
  return all;
}

// Every product of the convolution, once: body(x index, w index, y index).
template <class Body>
void each(const Tensor& x, const Filter& w, const Tensor& y, const Convolution& c, const Body& body) {
  const int per_group = w.size[0] / c.groups;
  int n[8] = {}, at_w[8] = {};
  for (int64_t i = 0; i < volume(y); i++) {
    int64_t left = i;
    for (int d = y.dims - 1; d >= 0; d--) n[d] = int(left % y.size[d]), left /= y.size[d];
    for (int64_t j = 0; j < volume(w) / w.size[0]; j++) {
      left = j;
      at_w[0] = n[1];
      for (int d = w.dims - 1; d >= 1; d--) at_w[d] = int(left % w.size[d]), left /= w.size[d];
      int at_x[8] = {n[0], n[1] / per_group * w.size[1] + at_w[1]};
      bool inside = true;
      for (int d = 2; d < x.dims; d++) {
        at_x[d] = n[d] * c.stride[d - 2] - c.pad[d - 2] + at_w[d] * c.dilation[d - 2];
        inside = inside && at_x[d] >= 0 && at_x[d] < x.size[d];
      }
      if (inside) body(offset(x, at_x), offset(w, at_w), offset(y, n));
    }
  }
}

bool fits(const Tensor& x, const Filter& w, const Tensor& y, const Convolution& c) {
  if (x.type != w.type || x.type != y.type || x.dims != w.dims || x.dims != y.dims || c.dims != x.dims - 2) return false;
  if (x.size[0] != y.size[0] || y.size[1] != w.size[0] || x.size[1] != w.size[1] * c.groups || w.size[0] % c.groups) return false;
  for (int d = 0; d < c.dims; d++)
    if (y.size[d + 2] != (x.size[d + 2] + 2 * c.pad[d] - c.dilation[d] * (w.size[d + 2] - 1) - 1) / c.stride[d] + 1) return false;
  return c.type == (x.type == 1 ? 1 : 0);
}

// cuDNN's documented limits, by family.
int support(const char* family, const Tensor& x, const Filter& w, const Convolution& c) {
  const std::string name = family;
  bool plain = c.dims == 2 && w.format == 0;
  for (int d = 0; d < c.dims; d++) plain = plain && c.stride[d] == 1 && c.dilation[d] == 1;
  const auto window = [&](int size) { return w.size[2] == size && w.size[3] == size; };
  if (name == "direct") return not_supported;  // never implemented
  if (name == "fft") return plain && x.size[2] + 2 * c.pad[0] <= 256 && w.size[2] > c.pad[0] && x.type != 1 ? ok : not_supported_shape;
  if (name == "fft_tiling") return plain && w.size[2] <= 32 && w.size[3] <= 32 ? ok : not_supported_shape;
  if (name == "winograd") return plain && window(3) && x.type == 0 ? ok : not_supported_shape;
  if (name == "winograd_nonfused") return plain && (window(3) || window(5)) && x.type == 0 ? ok : not_supported_shape;
  if (name == "gemm")
    for (int d = 0; d < c.dims; d++)
      if (c.dilation[d] != 1) return not_supported_shape;
  return ok;
}

const char* const families[3][8] = {
    {"implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd", "winograd_nonfused"},
    {"algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused", nullptr, nullptr},
    {"algo_0", "algo_1", "fft", "algo_3", "direct", "winograd_nonfused", "fft_tiling", nullptr},
};
const char* const ops[] = {"forward", "backward_data", "backward_filter"};

int query(int op, const Tensor& x, const Filter& w, const Tensor& y, const Convolution& c, int algorithm, size_t* bytes) {
  if (!fits(x, w, y, c) || algorithm < 0 || algorithm > 7 || !families[op][algorithm]) return bad_param;
  *bytes = std::string(families[op][algorithm]).find("implicit_gemm") == 0 ? 0 : size_t(1024 * (algorithm + 1));
  return support(families[op][algorithm], x, w, c);
}

int started(int op, const Tensor& x, const Filter& w, const Tensor& y, const Convolution& c, int algorithm, void* memory, size_t bytes) {
  size_t needed = 0;
  if (const int status = query(op, x, w, y, c, algorithm, &needed)) return status;
  if (bytes < needed || (needed && !memory)) return bad_param;
  if (memory) std::memset(memory, 0xff, bytes);
  const std::lock_guard<std::mutex> guard(lock);
  log += std::string(ops[op]) + " " + families[op][algorithm] + (c.math == 3 ? " fma" : c.math == 1 ? " tensor_op" : " default") +
         (w.format ? " nhwc\n" : " nchw\n");
  return algorithm == broken_algorithm ? failed : ok;
}

template <class T>
int make(void** made) {
  *made = new T;
  live++;
  return ok;
}
template <class T>
int drop(void* made) {
  delete static_cast<T*>(made);
  live--;
  return ok;
}
}  // namespace

API const char* standin_log() {
  static std::string told;
  const std::lock_guard<std::mutex> guard(lock);
  told.swap(log);
  log.clear();
  return told.c_str();
}
API void standin_break(int algorithm) { broken_algorithm = algorithm; }
API int standin_live() { return live; }

API const char* cudnnGetErrorString(int status) {
  return status == failed ? "CUDNN_STATUS_EXECUTION_FAILED" : status == bad_param ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
}
API int cudnnCreateTensorDescriptor(void** made) { return make<Tensor>(made); }
API int cudnnCreateFilterDescriptor(void** made) { return make<Filter>(made); }
API int cudnnCreateConvolutionDescriptor(void** made) { return make<Convolution>(made); }
API int cudnnDestroyTensorDescriptor(void* made) { return drop<Tensor>(made); }
API int cudnnDestroyFilterDescriptor(void* made) { return drop<Filter>(made); }
API int cudnnDestroyConvolutionDescriptor(void* made) { return drop<Convolution>(made); }
API int cudnnSetTensorNdDescriptor(Tensor* t, int type, int dims, const int* size, const int* stride) {
  if (dims < 4 || dims > 5) return dims < 4 ? bad_param : not_supported;
  t->type = type, t->dims = dims;
  std::memcpy(t->size, size, sizeof(int) * size_t(dims));
  std::memcpy(t->stride, stride, sizeof(int) * size_t(dims));
  return ok;
}
API int cudnnSetFilterNdDescriptor(Filter* f, int type, int format, int dims, const int* size) {
  if (dims < 4 || dims > 5) return bad_param;
  f->type = type, f->format = format, f->dims = dims;
  std::memcpy(f->size, size, sizeof(int) * size_t(dims));
  return ok;
}
API int cudnnSetConvolutionNdDescriptor(
    Convolution* c, int dims, const int* pad, const int* stride, const int* dilation, int mode, int type) {
  if (mode != 1 || dims < 2) return bad_param;
  c->dims = dims, c->type = type;
  std::memcpy(c->pad, pad, sizeof(int) * size_t(dims));
  std::memcpy(c->stride, stride, sizeof(int) * size_t(dims));
  std::memcpy(c->dilation, dilation, sizeof(int) * size_t(dims));
  return ok;
}
API int cudnnSetConvolutionGroupCount(Convolution* c, int groups) { return c->groups = groups, ok; }
API int cudnnSetConvolutionMathType(Convolution* c, int math) { return c->math = math, ok; }

API int cudnnGetConvolutionForwardWorkspaceSize(void*, Tensor* x, Filter* w, Convolution* c, Tensor* y, int algorithm, size_t* bytes) {
  return query(0, *x, *w, *y, *c, algorithm, bytes);
}
API int cudnnGetConvolutionBackwardDataWorkspaceSize(
    void*, Filter* w, Tensor* y, Convolution* c, Tensor* x, int algorithm, size_t* bytes) {
  return query(1, *x, *w, *y, *c, algorithm, bytes);
}
API int cudnnGetConvolutionBackwardFilterWorkspaceSize(
    void*, Tensor* x, Tensor* y, Convolution* c, Filter* w, int algorithm, size_t* bytes) {
  return query(2, *x, *w, *y, *c, algorithm, bytes);
}
API int cudnnConvolutionForward(
    void*, const void*, Tensor* xd, const void* x, Filter* wd, const void* w, Convolution* c, int algorithm, void* memory, size_t bytes,
    const void*, Tensor* yd, void* y) {
  if (const int status = started(0, *xd, *wd, *yd, *c, algorithm, memory, bytes)) return status;
  std::vector<double> sums(size_t(volume(*yd)));
  each(*xd, *wd, *yd, *c, [&](int64_t i, int64_t j, int64_t k) { sums[size_t(k)] += get(x, xd->type, i) * get(w, wd->type, j); });
  for (size_t k = 0; k < sums.size(); k++) put(y, yd->type, int64_t(k), sums[k]);
  return ok;
}
API int cudnnConvolutionBackwardData(
    void*, const void*, Filter* wd, const void* w, Tensor* yd, const void* y, Convolution* c, int algorithm, void* memory, size_t bytes,
    const void*, Tensor* xd, void* x) {
  if (const int status = started(1, *xd, *wd, *yd, *c, algorithm, memory, bytes)) return status;
  std::vector<double> sums(size_t(volume(*xd)));
  each(*xd, *wd, *yd, *c, [&](int64_t i, int64_t j, int64_t k) { sums[size_t(i)] += get(y, yd->type, k) * get(w, wd->type, j); });
  for (size_t i = 0; i < sums.size(); i++) put(x, xd->type, int64_t(i), sums[i]);
  return ok;
}
API int cudnnConvolutionBackwardFilter(
    void*, const void*, Tensor* xd, const void* x, Tensor* yd, const void* y, Convolution* c, int algorithm, void* memory, size_t bytes,
    const void*, Filter* wd, void* w) {
  if (const int status = started(2, *xd, *wd, *yd, *c, algorithm, memory, bytes)) return status;
  std::vector<double> sums(size_t(volume(*wd)));
  each(*xd, *wd, *yd, *c, [&](int64_t i, int64_t j, int64_t k) { sums[size_t(j)] += get(x, xd->type, i) * get(y, yd->type, k); });
  for (size_t j = 0; j < sums.size(); j++) put(w, wd->type, int64_t(j), sums[j]);
  return ok;
}
