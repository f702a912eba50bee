// A library with the functions of cuDNN 9 that msctx calls, for machines without CUDA: torch computes on the host, in float64, with
// cuDNN's own limits and status codes as its documentation states them, and keeps a log of what it was told to run.
//
// It proves how msctx asks cuDNN, not what cuDNN answers: that the tests marked `cuda` show.
#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { ok = 0, bad_param = 2000, not_supported = 3000, not_supported_shape = 3002 };

struct Tensor {
  int type = -1, dims = 0, size[8] = {}, stride[8] = {};
};
struct Filter {
  int type = -1, format = 0, dims = 0, size[8] = {};
};
struct Convolution {
  int dims = 0, pad[8] = {}, stride[8] = {}, dilation[8] = {}, type = 0, groups = 1, math = 0;
};

std::mutex lock;  // of what is told: as in cuDNN, threads run at once
std::string told;

at::Tensor at_place(const Tensor& t, const void* data, const int* stride) {
  const auto type = t.type == 0 ? at::kFloat : t.type == 1 ? at::kDouble : t.type == 2 ? at::kHalf : at::kBFloat16;
  const std::vector<int64_t> sizes(t.size, t.size + t.dims), strides(stride, stride + t.dims);
  return at::from_blob(const_cast<void*>(data), sizes, strides, type);
}
at::Tensor at_place(const Tensor& t, const void* data) { return at_place(t, data, t.stride); }
at::Tensor at_place(const Filter& f, const void* data) {
  Tensor t{f.type, f.dims, {}, {}};
  std::memcpy(t.size, f.size, sizeof f.size);
  int all = f.format ? f.size[1] : 1;  // the window's first axis is the outer one, and the channels stand before it or after it
  for (int d = f.dims - 1; d >= 2; d--) t.stride[d] = all, all *= f.size[d];
  t.stride[1] = f.format ? 1 : all;
  t.stride[0] = f.format ? all : all * f.size[1];
  return at_place(t, data);
}

// Some of cuDNN's documented limits, by family.
int support(const std::string& family, const Tensor& x, const Filter& w) {
  if (family == "direct") return not_supported;  // never implemented
  if (family == "winograd" || family == "winograd_nonfused")
    return w.dims == 4 && w.size[2] == 3 && w.size[3] == 3 && x.type == 0 ? ok : not_supported_shape;
  return ok;
}

const char* const families[3][8] = {
    {"implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd", "winograd_nonfused"},
    {"algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused", nullptr, nullptr},
    {"algo_0", "algo_1", "fft", "algo_3", "direct", "winograd_nonfused", "fft_tiling", nullptr},
};
const char* const ops[] = {"forward", "backward_data", "backward_filter"};

int query(int op, const Tensor& x, const Filter& w, int algorithm, size_t* bytes) {
  if (algorithm < 0 || algorithm > 7 || !families[op][algorithm]) return bad_param;
  *bytes = std::string(families[op][algorithm]).find("implicit_gemm") == 0 ? 0 : size_t(1024 * (algorithm + 1));
  return support(families[op][algorithm], x, w);
}

int started(int op, const Tensor& x, const Filter& w, const Convolution& c, int algorithm, void* memory, size_t bytes) {
  size_t needed = 0;
  if (const int status = query(op, x, w, algorithm, &needed)) return status;
  if (bytes < needed || (needed && !memory)) return bad_param;
  if (memory) std::memset(memory, 0xff, bytes);
  const std::lock_guard<std::mutex> guard(lock);
  told += std::string(ops[op]) + " " + families[op][algorithm] + (c.math == 3 ? " fma" : c.math == 1 ? " tensor_op" : " default") +
         (w.format ? " nhwc\n" : " nchw\n");
  return ok;
}

// By torch, in float64: the result of the operation, which is y, x or w.
int computed(const Convolution& c, at::Tensor x, at::Tensor w, at::Tensor y, int op) {
  const at::AutoDispatchBelowAutograd as_it_is;
  const auto along = [&](const int* values) { return std::vector<int64_t>(values, values + c.dims); };
  const std::vector<int64_t> stride = along(c.stride), pad = along(c.pad), dilation = along(c.dilation), none(size_t(c.dims));
  const at::Tensor dx = x.to(at::kDouble), dw = w.to(at::kDouble), dy = y.to(at::kDouble);
  if (op == 0) return y.copy_(at::convolution(dx, dw, {}, stride, pad, dilation, false, none, c.groups)), ok;
  const auto [gx, gw, _] = at::convolution_backward(
      dy, dx, dw, at::OptionalIntArrayRef(), stride, pad, dilation, false, none, c.groups, {op == 1, op == 2, false});
  return (op == 1 ? x : w).copy_(op == 1 ? gx : gw), ok;
}

template <class T>
int make(void** made) { return *made = new T, ok; }
template <class T>
int drop(void* made) { return delete static_cast<T*>(made), ok; }
}  // namespace

API const char* standin_log() {
  static std::string taken;
  const std::lock_guard<std::mutex> guard(lock);
  taken.swap(told);
  told.clear();
  return taken.c_str();
}
API const char* cudnnGetErrorString(int status) {
  return status == bad_param ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED";
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
  return query(0, *x, *w, algorithm, bytes);
}
API int cudnnGetConvolutionBackwardDataWorkspaceSize(
    void*, Filter* w, Tensor* y, Convolution* c, Tensor* x, int algorithm, size_t* bytes) {
  return query(1, *x, *w, algorithm, bytes);
}
API int cudnnGetConvolutionBackwardFilterWorkspaceSize(
    void*, Tensor* x, Tensor* y, Convolution* c, Filter* w, int algorithm, size_t* bytes) {
  return query(2, *x, *w, algorithm, bytes);
}
API int cudnnConvolutionForward(
    void*, const void*, Tensor* xd, const void* x, Filter* wd, const void* w, Convolution* c, int algorithm, void* memory, size_t bytes,
    const void*, Tensor* yd, void* y) {
  if (const int status = started(0, *xd, *wd, *c, algorithm, memory, bytes)) return status;
  return computed(*c, at_place(*xd, x), at_place(*wd, w), at_place(*yd, y), 0);
}
API int cudnnConvolutionBackwardData(
    void*, const void*, Filter* wd, const void* w, Tensor* yd, const void* y, Convolution* c, int algorithm, void* memory, size_t bytes,
    const void*, Tensor* xd, void* x) {
  if (const int status = started(1, *xd, *wd, *c, algorithm, memory, bytes)) return status;
  return computed(*c, at_place(*xd, x), at_place(*wd, w), at_place(*yd, y), 1);
}
API int cudnnConvolutionBackwardFilter(
    void*, const void*, Tensor* xd, const void* x, Tensor* yd, const void* y, Convolution* c, int algorithm, void* memory, size_t bytes,
    const void*, Filter* wd, void* w) {
  if (const int status = started(2, *xd, *wd, *c, algorithm, memory, bytes)) return status;
  return computed(*c, at_place(*xd, x), at_place(*wd, w), at_place(*yd, y), 2);
}
