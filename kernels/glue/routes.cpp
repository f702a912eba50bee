#include "glue/routes.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_conv_depthwise2d_ops.h>
#include <ATen/ops/_nnpack_spatial_convolution_ops.h>
#include <ATen/ops/_slow_conv2d_backward_ops.h>
#include <ATen/ops/_slow_conv2d_forward_ops.h>
#include <ATen/ops/conv_depthwise3d_ops.h>
#include <ATen/ops/mkldnn_convolution_ops.h>
#include <ATen/ops/slow_conv3d_forward_ops.h>
#include <ATen/ops/slow_conv_dilated2d_ops.h>
#include <ATen/ops/slow_conv_dilated3d_ops.h>
#include <ATen/ops/slow_conv_transpose2d_ops.h>
#include <ATen/ops/slow_conv_transpose3d_ops.h>

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "glue/hook.h"
#include "glue/tensors.h"

namespace msctx::glue {
namespace {

// Operators that compute matrix products without those that are hooked (see product.cpp).
constexpr std::string_view products_of_torch[] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", "aten::mkldnn_linear",
    "aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm_for_cpu", "aten::_dyn_quant_matmul_4bit", "aten::_scaled_mm",
    "aten::_int_mm", "aten::fbgemm_linear_fp16_weight", "aten::fbgemm_linear_fp16_weight_fp32_activation",
    "aten::fbgemm_linear_int8_weight", "aten::fbgemm_linear_int8_weight_fp32_activation"};

bool is_product(const std::string& name) {
  if (std::find(std::begin(products_of_torch), std::end(products_of_torch), name) != std::end(products_of_torch)) return true;
  return name.find("aten::") == name.npos && name.find("conv") == name.npos && name.find("linear") != name.npos;
}

// torch's own convolutions, which its aten::convolution calls, too; of these install_routes takes the ones that it calls often.
constexpr std::string_view called_by_torch[] = {
    "aten::mkldnn_convolution", "aten::_nnpack_spatial_convolution", "aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward",
    "aten::slow_conv3d_forward", "aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d", "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d", "aten::_conv_depthwise2d", "aten::conv_depthwise3d"};

bool is_route(const c10::OperatorName& op, c10::DispatchKey key) {
  const auto has = [&](const char* part) { return op.name.find(part) != std::string::npos; };
  if (is_product(op.name) && has("aten::")) return key == c10::DispatchKey::CPU || key == c10::DispatchKey::MkldnnCPU;
  if (has("aten::")) {
    if (key == c10::DispatchKey::MkldnnCPU) return op.name == "aten::convolution" || op.name == "aten::mkldnn_convolution";
    const bool is_called = std::find(std::begin(called_by_torch), std::end(called_by_torch), op.name) != std::end(called_by_torch);
    if (is_called) return !op.overload_name.empty() && op.overload_name != "output_mask";  // out=, and one gradient's out=
    if (op.name == "aten::cudnn_convolution") return op.overload_name == "out";  // of the other one see install_cudnn_routes
    const bool is_fused = op.name == "aten::cudnn_convolution_relu" || op.name == "aten::cudnn_convolution_add_relu";
    return op.name == "aten::conv_tbc" || (is_fused && op.overload_name.empty());  // their out= calls them
  }
  if (!has("mkldnn") && !has("mkl::") && !has("quantized::") && !has("onednn::") && !has("prepacked::")) return false;
  for (const char* part : {"prepack", "reorder", "_stride", "_padding", "_dilation", "_groups", "d_transpose"})
    if (op.name.find(part, op.name.find("::")) != std::string::npos) return false;  // packing weights, asking for parameters
  if (has("unpack") && !has("unpacked")) return false;
  return has("conv") || is_product(op.name);
}

bool is_asked(Place place) { return inside_torch == 0 && in_force(place); }

void count_route(Place place, const std::string& name, bool is_backward, const at::Tensor& input, const at::Tensor& weight) {
  const auto [policy, books] = msctx::policy(place);
  if (!policy) return;
  const bool is_quantized = input.defined() && input.is_quantized(), of_products = is_product(name);
  const std::string reason =
      name + (!is_quantized ? " is an operator of its own" : of_products ? " is not a float product" : " is not a float convolution") +
      ": algorithms of msctx do not apply to it";
  for (const Direction direction : {Direction::fprop, Direction::dgrad, Direction::wgrad, Direction::matmul})
    if (of_products ? direction == Direction::matmul : direction != Direction::matmul && is_backward == (direction != Direction::fprop))
      if (const Decided decision = policy->refuse(direction, text_of_tensors(input, weight, "packed"), reason, books)) {
        complain(*policy, *decision);
        count(decision->choice, {1}, false, books);
      }
}

// The boxed kernel of a route at a key.
class Route : public c10::OperatorKernel {
 public:
  Route(Place place, Before before) : place_(place), before_(std::move(before)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (is_asked(place_)) {
      std::vector<at::Tensor> found(3);
      for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size()))
        if (argument.isTensor()) found.insert(found.end() - 3, argument.toTensor());
      const std::string& name = op.schema().name();
      const bool is_backward = name.find("backward") != std::string::npos;  // its gradient comes first
      count_route(place_, name, is_backward, found[is_backward], found[is_backward + 1]);
    }
    const InsideTorch guard;
    if (!before_.call(op, keys, stack)) op.redispatchBoxed(c10::DispatchKeySet(), stack);
  }

 private:
  Place place_;
  Before before_;
};

void install_boxed(const c10::OperatorHandle& op, Place place, c10::DispatchKey key) {
  implement(op, key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Route>(place, before(op, key))));
}

// A route that each convolution takes inside torch, outside every context too: to box its arguments would cost it a microsecond. The
// kernel that was in force is called as the dispatcher would.
template <Place place, class Op, class Signature = typename Op::schema>
struct Direct;
template <Place place, class Op, class Return, class... Arguments>
struct Direct<place, Op, Return(Arguments...)> {
  static inline auto& torchs = immortal<c10::KernelFunction>();
  static inline auto& op = immortal<std::optional<c10::OperatorHandle>>();

  static Return run(c10::DispatchKeySet keys, Arguments... arguments) {
    if (is_asked(place)) {
      constexpr bool is_backward = std::string_view(Op::name).find("backward") != std::string_view::npos;
      const auto all = std::tie(arguments...);  // of a backward pass the gradient comes first
      count_route(place, Op::name, is_backward, std::get<is_backward>(all), std::get<is_backward + 1>(all));
    }
    return torchs.call<Return, Arguments...>(*op, keys, std::forward<Arguments>(arguments)...);
  }

  static void install(c10::DispatchKey key) {
    op = c10::Dispatcher::singleton().findSchema({Op::name, Op::overload_name});
    if (!op || !op->hasComputedKernelForDispatchKey(key)) return;
    if (of_another_library(*op, key).kernel) return install_boxed(*op, place, key);
    torchs = in_table(*op, key);
    implement(*op, key, torch::CppFunction(TORCH_FN(run)));
  }
};

// The same of cuDNN's two, where torch's kernel is called by its address.
template <class Signature>
struct ByAddress;
template <class... Rest>
struct ByAddress<at::Tensor(const at::Tensor&, const at::Tensor&, Rest...)> {
  static inline at::Tensor (*torchs)(const at::Tensor&, const at::Tensor&, Rest...) = nullptr;
  static inline auto& name = immortal<std::string>();

  static at::Tensor run(const at::Tensor& input, const at::Tensor& weight, Rest... rest) {
    if (is_asked(Place::cuda)) count_route(Place::cuda, name, false, input, weight);
    return torchs(input, weight, std::forward<Rest>(rest)...);
  }

  // Another library's kernel, and one of torch's that is not to be found, are called boxed.
  static void install(const char* operator_name, c10::DispatchKey key, void* library_of_torch, const char* symbol) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(operator_name, "");
    void* address = library_of_torch ? dlsym(library_of_torch, symbol) : nullptr;
    if (!address || of_another_library(op, key).kernel) return install_boxed(op, Place::cuda, key);
    name = operator_name;
    torchs = reinterpret_cast<decltype(torchs)>(address);
    implement(op, key, torch::CppFunction(run));
  }
};

template <Place place, class... Ops>
void install_direct(c10::DispatchKey key) {
  (Direct<place, Ops>::install(key), ...);
}

}  // namespace

void install_routes(Place place, const std::vector<c10::DispatchKey>& keys) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    for (const c10::DispatchKey key : keys)
      if (is_route(name, key))
        if (const auto op = c10::Dispatcher::singleton().findSchema(name); op && op->hasComputedKernelForDispatchKey(key))
          install_boxed(*op, place, key);
  if (place == Place::cpu)
    install_direct<
        Place::cpu, at::_ops::mkldnn_convolution, at::_ops::_nnpack_spatial_convolution, at::_ops::_slow_conv2d_forward,
        at::_ops::_slow_conv2d_backward_output_mask, at::_ops::slow_conv3d_forward, at::_ops::slow_conv_dilated2d, at::_ops::slow_conv_dilated3d,
        at::_ops::slow_conv_transpose2d, at::_ops::slow_conv_transpose3d>(keys.front());
  else
    install_direct<
        Place::cuda, at::_ops::_conv_depthwise2d, at::_ops::conv_depthwise3d,
        at::_ops::_slow_conv2d_forward, at::_ops::_slow_conv2d_backward_output_mask, at::_ops::slow_conv_dilated2d, at::_ops::slow_conv_dilated3d,
        at::_ops::slow_conv_transpose2d, at::_ops::slow_conv_transpose3d>(keys.front());
}

void install_cudnn_routes(c10::DispatchKey key, const char* torch_cuda) {
  using Tensor = const at::Tensor&;
  void* found = dlopen(torch_cuda, RTLD_NOW | RTLD_NOLOAD);
  // at::cuda::cudnn_convolution_symint and …_transpose_symint
  ByAddress<at::Tensor(Tensor, Tensor, SymInts, SymInts, SymInts, c10::SymInt, bool, bool, bool)>::install(
      "aten::cudnn_convolution", key, found,
      "_ZN2at4cuda24cudnn_convolution_symintERKNS_6TensorES3_N3c108ArrayRefINS4_6SymIntEEES7_S7_S6_bbb");
  ByAddress<at::Tensor(Tensor, Tensor, SymInts, SymInts, SymInts, SymInts, c10::SymInt, bool, bool, bool)>::install(
      "aten::cudnn_convolution_transpose", key, found,
      "_ZN2at4cuda34cudnn_convolution_transpose_symintERKNS_6TensorES3_N3c108ArrayRefINS4_6SymIntEEES7_S7_S7_S6_bbb");
}

}  // namespace msctx::glue
