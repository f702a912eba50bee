// cuDNN's legacy interface (cuDNN 9, cudnn_cnn.h and cudnn_ops.h: deprecated since 9.0, exported and used by torch itself).
#include "glue/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

namespace msctx::glue {
namespace {

using Handle = void*;
using Descriptor = void*;
enum { success = 0, not_supported = 3000, beyond_not_supported = 4000 };  // cudnnStatus_t of cuDNN 9: 3001, 3002 give the reason
enum Math { tf32_allowed = 0, tensor_op = 1, fma = 3 };                   // cudnnMathType_t: the first is CUDNN_DEFAULT_MATH
enum { cross_correlation = 1 };                                           // cudnnConvolutionMode_t
enum { nchw = 0, nhwc = 1 };                                              // cudnnTensorFormat_t

struct Cudnn {
  Handle (*handle)() = nullptr;
  const char* (*error)(int) = nullptr;
  int (*make_tensor)(Descriptor*) = nullptr, (*make_filter)(Descriptor*) = nullptr, (*make_convolution)(Descriptor*) = nullptr;
  int (*drop_tensor)(Descriptor) = nullptr, (*drop_filter)(Descriptor) = nullptr, (*drop_convolution)(Descriptor) = nullptr;
  int (*set_tensor)(Descriptor, int type, int dims, const int* size, const int* stride) = nullptr;
  int (*set_filter)(Descriptor, int type, int format, int dims, const int* size) = nullptr;
  int (*set_convolution)(Descriptor, int dims, const int* pad, const int* stride, const int* dilation, int mode, int type) = nullptr;
  int (*set_groups)(Descriptor, int) = nullptr;
  int (*set_math)(Descriptor, int) = nullptr;
  // By Op; the tensors in the order of cuDNN's own parameters: see in_order.
  int (*workspace[3])(Handle, Descriptor, Descriptor, Descriptor convolution, Descriptor, int algorithm, size_t*) = {};
  int (*run[3])(
      Handle, const void* alpha, Descriptor, const void*, Descriptor, const void*, Descriptor convolution, int algorithm, void* memory, size_t,
      const void* beta, Descriptor, void*) = {};
};
Cudnn cudnn;

// What an Op reads, and what it writes.
template <class T>
std::array<T, 3> in_order(Op op, T x, T w, T y) {
  switch (op) {
    case Op::forward: return {x, w, y};
    case Op::backward_data: return {w, y, x};
    default: return {x, y, w};
  }
}

// One problem and algorithm's arithmetic as descriptors of cuDNN. Those of a thread are kept: to make them takes longer than many a launch.
struct Described {
  Descriptor x = nullptr, w = nullptr, y = nullptr, convolution = nullptr;
  std::map<std::pair<Op, int>, std::pair<int, size_t>> support;  // status and workspace

  void describe(const ConvProblem& p, bool last, bool tf32) {
    // cuDNN has no 1-D convolutions: they are 2-D of height 1, as torch has them
    const int dims = p.dims == 3 ? 3 : 2, first = 3 - dims, count = dims + 2;
    const auto tensor = [&](Descriptor& made, int64_t channels, const int64_t extent[3]) {
      int size[5] = {int(p.n), int(channels)}, stride[5];
      for (int i = 0; i < dims; i++) size[2 + i] = int(extent[first + i]);
      int64_t step = last ? channels : 1;
      for (int i = count - 1; i >= 2; i--) {
        stride[i] = int(step);
        step *= size[i];
      }
      const int64_t image = last ? step : step * channels;
      if (p.n * image > std::numeric_limits<int>::max()) throw CudaFailed("it has more elements than 31 bits count");
      stride[1] = last ? 1 : int(step);
      stride[0] = int(image);
      check(cudnn.make_tensor(&made));
      check(cudnn.set_tensor(made, type(p), count, size, stride));
    };
    tensor(x, p.c, p.in);
    tensor(y, p.k, p.out);
    int size[5] = {int(p.k), int(group_c(p))}, pad[3], stride[3], dilation[3];
    for (int i = 0; i < dims; i++) {
      size[2 + i] = int(p.window[first + i]);
      pad[i] = int(p.pad[first + i]);
      stride[i] = int(p.stride[first + i]);
      dilation[i] = int(p.dilation[first + i]);
    }
    check(cudnn.make_filter(&w));
    check(cudnn.set_filter(w, type(p), last ? nhwc : nchw, count, size));
    check(cudnn.make_convolution(&convolution));
    check(cudnn.set_convolution(convolution, dims, pad, stride, dilation, cross_correlation, p.dtype == DType::f64 ? 1 : 0));
    check(cudnn.set_groups(convolution, int(p.groups)));
    const bool is_half = p.dtype == DType::f16 || p.dtype == DType::bf16;
    check(cudnn.set_math(convolution, is_half ? tensor_op : tf32 ? tf32_allowed : fma));
  }
  Described() = default;
  Described(const Described&) = delete;
  ~Described() {
    for (Descriptor tensor : {x, y})
      if (tensor) cudnn.drop_tensor(tensor);
    if (w) cudnn.drop_filter(w);
    if (convolution) cudnn.drop_convolution(convolution);
  }

  const std::pair<int, size_t>& queried(Op op, int algorithm) {
    const auto [found, is_new] = support.try_emplace({op, algorithm});
    if (is_new) {
      const auto [a, b, result] = in_order(op, x, w, y);
      found->second.first = cudnn.workspace[int(op)](cudnn.handle(), a, b, convolution, result, algorithm, &found->second.second);
    }
    return found->second;
  }

 private:
  static int type(const ConvProblem& p) {
    constexpr int types[] = {0, 1, 2, 9};  // cudnnDataType_t: float, double, half, bfloat16
    return types[int(p.dtype)];
  }
  static void check(int status) {
    if (status != success) throw CudaFailed(cudnn.error(status));
  }
};

// For the problem of the call in question. Throws CudaFailed where cuDNN has no descriptor for it.
Described& described(const ConvProblem& p, bool tf32) {
  constexpr size_t most = 4096;
  thread_local std::unordered_map<std::string, std::unique_ptr<Described>> all;
  if (all.size() >= most) all.clear();
  const ConvCall& call = call_in_question();
  std::unique_ptr<Described>& found = all[key_of(p, call) += char(tf32)];
  if (!found) {
    auto made = std::make_unique<Described>();
    made->describe(p, call.channels_last, tf32);
    found = std::move(made);
  }
  return *found;
}

struct Named {
  Direction direction;
  const char* name;
  int number[3];  // that of each Op; -1: the Op has none of this name
};
constexpr auto fprop = Direction::fprop, dgrad = Direction::dgrad, wgrad = Direction::wgrad;
// A transposed convolution's fprop is a backward_data, its dgrad a forward; algorithms of these that the options have no name for in this
// direction are for performance. `direct` has a number, too (3), but cuDNN never implemented it.
constexpr Named all_named[] = {
    {fprop, "implicit_gemm", {0, -1, -1}}, {fprop, "implicit_precomp_gemm", {1, -1, -1}}, {fprop, "gemm", {2, -1, -1}},
    {fprop, "fft", {4, 2, -1}}, {fprop, "fft_tiling", {5, 3, -1}}, {fprop, "winograd", {6, 4, -1}},
    {fprop, "winograd_nonfused", {7, 5, -1}}, {fprop, "algo_0", {-1, 0, -1}}, {fprop, "algo_1", {-1, 1, -1}},
    {dgrad, "algo_0", {-1, 0, -1}}, {dgrad, "algo_1", {-1, 1, -1}}, {dgrad, "fft", {4, 2, -1}},
    {dgrad, "fft_tiling", {5, 3, -1}}, {dgrad, "winograd", {6, 4, -1}}, {dgrad, "winograd_nonfused", {7, 5, -1}},
    {dgrad, "implicit_gemm", {0, -1, -1}}, {dgrad, "implicit_precomp_gemm", {1, -1, -1}}, {dgrad, "gemm", {2, -1, -1}},
    {wgrad, "algo_0", {-1, -1, 0}}, {wgrad, "algo_1", {-1, -1, 1}}, {wgrad, "fft", {-1, -1, 2}},
    {wgrad, "algo_3", {-1, -1, 3}}, {wgrad, "fft_tiling", {-1, -1, 6}}, {wgrad, "winograd_nonfused", {-1, -1, 5}},
};

// Those that run on tensor cores through this interface (cuDNN's documentation of it, "supported algorithms").
constexpr bool has_tensor_cores(std::string_view name) {
  return name == "winograd_nonfused" || name == "implicit_precomp_gemm" || name == "algo_1";
}
// cudnn_ops.h: CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, …_BWD_FILTER_ALGO_0 and _3 are "non-deterministic".
constexpr bool adds_atomically(std::string_view name) { return name == "algo_0" || name == "algo_3"; }

template <size_t index, bool tf32>
struct CudnnRow {
  static constexpr const Named& named = all_named[index];

  static void reasons(const ConvProblem& p, Op op, Reasons& found) {
    const int number = named.number[int(op)];
    found.add_if(number < 0, "cuDNN computes a transposed convolution as a gradient, which has no algorithm of this name");
    found.add_if(!call_in_question().torch_allows_cudnn, "torch.backends.cudnn.enabled is False");
    found.add_if(tf32 && p.dtype != DType::f32, "TF32 is for float32");
    found.add_if(tf32 && !has_tf32(call_in_question().device), "this GPU has no TF32");
    found.add_if(tf32 && !call_in_question().torch_allows_tf32, "torch.backends.cudnn.allow_tf32 is False");
    if (found.count || is_empty(p)) return;
    add_failure(algorithm, p, op, found);
    if (found.count) return;
    try {
      const int status = described(p, tf32).queried(op, number).first;
      if (status >= not_supported && status < beyond_not_supported)
        found.add("cuDNN does not support it for this problem on this device");
      else if (status != success)
        found.add(permanent(std::string("cuDNN refuses it: ") + cudnn.error(status)));
    } catch (const CudaFailed& failed) {
      found.add(permanent(std::string("cuDNN has no descriptor for this problem: ") + failed.what()));
    }
  }
  static size_t workspace(const ConvProblem& p, Op op, int) {
    const int number = named.number[int(op)];
    if (number < 0 || is_empty(p)) return 0;
    return described(p, tf32).queried(op, number).second;
  }
  // cuDNN states none. What is known: with windows of 5, Winograd was off by 1.2e-2 of the largest result on an H100 (cuDNN 9.19).
  static double error(const ConvProblem& p, Op) {
    const bool is_five = std::any_of(p.window, p.window + p.dims, [](int64_t size) { return size == 5; });
    return is_five && std::string_view(named.name) == "winograd_nonfused" ? 1.3e-2 : 0.0;
  }
  // Throws CudaFailed.
  static bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void* memory, const Parallel&) {
    const int number = named.number[int(op)];
    Described& d = described(p, tf32);
    const size_t bytes = d.queried(op, number).second;
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const bool wide = p.dtype == DType::f64;
    const void *alpha = wide ? static_cast<const void*>(&one64) : &one, *beta = wide ? static_cast<const void*>(&zero64) : &zero;
    const auto [a, b, result] = in_order(op, d.x, d.w, d.y);
    const auto [of_a, of_b, of_result] = in_order(op, t.x, t.w, t.y);
    const int status = cudnn.run[int(op)](
        cudnn.handle(), alpha, a, of_a, b, of_b, d.convolution, number, memory, bytes, beta, result, of_result);
    if (status != success) throw CudaFailed(std::string("cuDNN failed to run it: ") + cudnn.error(status));
    return true;
  }

  static constexpr ConvAlgorithm algorithm{
      .name = named.name,
      .math = tf32 ? "tf32" : "strict",
      .fixed_order = !adds_atomically(named.name),
      .same_on_every_isa = false,
      .reasons = reasons,
      .workspace = workspace,
      .error = error,
      .run = run,
      .reads_channels_last = true,
      .provider = "cudnn",
  };
  static bool exists(Op op) { return named.number[int(op)] >= 0; }
  static constexpr ConvRow row{named.direction, named.name, &algorithm, nullptr, exists};
};

template <size_t... index>
std::vector<ConvRow> rows_of(std::index_sequence<index...>) {
  std::vector<ConvRow> all;
  const auto add = [&]<size_t i>() {
    if constexpr (has_tensor_cores(all_named[i].name)) all.push_back(CudnnRow<i, true>::row);
    all.push_back(CudnnRow<i, false>::row);
  };
  (add.template operator()<index>(), ...);
  return all;
}

}  // namespace

std::vector<ConvRow> cudnn_rows() { return rows_of(std::make_index_sequence<std::size(all_named)>()); }

std::string load_cudnn(const char* library, const char* torch_cuda) {
  void* found = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (!found) return std::string(library) + " is not loaded: this torch has no cuDNN";
  std::string missing;
  const auto get = [&](auto& function, void* from, const char* name) {
    *reinterpret_cast<void**>(&function) = from ? dlsym(from, name) : nullptr;
    if (!function && missing.empty()) missing = std::string(name) + " is missing: another cuDNN than 9, or another torch";
  };
  get(cudnn.error, found, "cudnnGetErrorString");
  get(cudnn.make_tensor, found, "cudnnCreateTensorDescriptor");
  get(cudnn.make_filter, found, "cudnnCreateFilterDescriptor");
  get(cudnn.make_convolution, found, "cudnnCreateConvolutionDescriptor");
  get(cudnn.drop_tensor, found, "cudnnDestroyTensorDescriptor");
  get(cudnn.drop_filter, found, "cudnnDestroyFilterDescriptor");
  get(cudnn.drop_convolution, found, "cudnnDestroyConvolutionDescriptor");
  get(cudnn.set_tensor, found, "cudnnSetTensorNdDescriptor");
  get(cudnn.set_filter, found, "cudnnSetFilterNdDescriptor");
  get(cudnn.set_convolution, found, "cudnnSetConvolutionNdDescriptor");
  get(cudnn.set_groups, found, "cudnnSetConvolutionGroupCount");
  get(cudnn.set_math, found, "cudnnSetConvolutionMathType");
  get(cudnn.workspace[0], found, "cudnnGetConvolutionForwardWorkspaceSize");
  get(cudnn.workspace[1], found, "cudnnGetConvolutionBackwardDataWorkspaceSize");
  get(cudnn.workspace[2], found, "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  get(cudnn.run[0], found, "cudnnConvolutionForward");
  get(cudnn.run[1], found, "cudnnConvolutionBackwardData");
  get(cudnn.run[2], found, "cudnnConvolutionBackwardFilter");
  get(cudnn.handle, dlopen(torch_cuda, RTLD_NOW | RTLD_NOLOAD), "_ZN2at6native14getCudnnHandleEv");
  return missing;
}

}  // namespace msctx::glue
