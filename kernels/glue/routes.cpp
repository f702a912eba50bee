#include "glue/routes.h"

#include <dlfcn.h>

#include <memory>
#include <string>
#include <utility>

#include "glue/hook.h"
#include "glue/tensors.h"

namespace msctx::glue {
namespace {

bool is_route(const c10::OperatorName& op, c10::DispatchKey key) {
  const auto has = [&](const char* part) { return op.name.find(part) != std::string::npos; };
  if (has("aten::")) {
    if (key == c10::DispatchKey::MkldnnCPU) return op.name == "aten::convolution" || op.name == "aten::mkldnn_convolution";
    if (op.name == "aten::cudnn_convolution") return op.overload_name == "out";  // of the other one see install_cudnn_routes
    const bool is_fused = op.name == "aten::cudnn_convolution_relu" || op.name == "aten::cudnn_convolution_add_relu";
    return op.name == "aten::conv_tbc" || (is_fused && op.overload_name.empty());  // their out= calls them
  }
  if (!has("mkldnn") && !has("quantized::") && !has("onednn::")) return false;
  for (const char* part : {"prepack", "unpack", "reorder", "_stride", "_padding", "_dilation", "_groups", "d_transpose"})
    if (op.name.find(part, op.name.find("::")) != std::string::npos) return false;  // packing weights, asking for parameters
  return has("conv");
}

bool is_asked(Place place) { return inside_torch == 0 && in_force(place); }

void count_route(Place place, const std::string& name, const at::Tensor& input, const at::Tensor& weight) {
  const auto policy = msctx::policy(place);
  if (!policy) return;
  const std::string reason = name + " is an operator of its own, which no algorithm of msctx replaces";
  if (const Decision* decision = policy->refuse(Direction::fprop, text_of_tensors(input, weight, "packed"), reason)) {
    complain(*policy, *decision);
    decision->choice->calls.fetch_add(1, std::memory_order_relaxed);
  }
}

// The boxed kernel of a route at a key.
class Route : public c10::OperatorKernel {
 public:
  Route(Place place, Before before) : place_(place), before_(std::move(before)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (is_asked(place_)) {
      at::Tensor found[2];
      int count = 0;
      for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size()))
        if (argument.isTensor() && count < 2) found[count++] = argument.toTensor();
      count_route(place_, op.schema().name(), found[0], found[1]);
    }
    const InsideTorch guard;
    if (!before_.call(op, keys, stack)) op.redispatchBoxed(c10::DispatchKeySet(), stack);
  }

 private:
  Place place_;
  Before before_;
};

void install_boxed(const c10::OperatorHandle& op, Place place, c10::DispatchKey key) {
  const std::string full = c10::toString(op.operator_name()), ns = full.substr(0, full.find("::"));
  auto kernel = std::make_unique<Route>(place, before(op, key));
  library(ns.c_str(), key).impl(full.substr(ns.size() + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

// A route that each convolution takes inside torch, outside every context too: to box its arguments would cost it a microsecond. torch's
// kernel is called by its address.
template <class Signature>
struct Direct;
template <class... Rest>
struct Direct<at::Tensor(const at::Tensor&, const at::Tensor&, Rest...)> {
  static inline at::Tensor (*torchs)(const at::Tensor&, const at::Tensor&, Rest...) = nullptr;
  static inline std::string name;

  static at::Tensor run(const at::Tensor& input, const at::Tensor& weight, Rest... rest) {
    if (is_asked(Place::cuda)) count_route(Place::cuda, name, input, weight);
    return torchs(input, weight, std::forward<Rest>(rest)...);
  }

  // Another library's kernel, and one of torch's that is not to be found, are called boxed.
  static void install(const char* operator_name, c10::DispatchKey key, void* library_of_torch, const char* symbol) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(operator_name, "");
    void* address = library_of_torch ? dlsym(library_of_torch, symbol) : nullptr;
    if (!address || anothers(op, key).kernel) return install_boxed(op, Place::cuda, key);
    name = operator_name;
    torchs = reinterpret_cast<decltype(torchs)>(address);
    library("aten", key).impl(operator_name, run);
  }
};

}  // namespace

void install_routes(Place place, const std::vector<c10::DispatchKey>& keys) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    for (const c10::DispatchKey key : keys)
      if (is_route(name, key))
        if (const auto op = c10::Dispatcher::singleton().findSchema(name); op && op->hasComputedKernelForDispatchKey(key))
          install_boxed(*op, place, key);
}

void install_cudnn_routes(c10::DispatchKey key, const char* torch_cuda) {
  using Tensor = const at::Tensor&;
  void* found = dlopen(torch_cuda, RTLD_NOW | RTLD_NOLOAD);
  // at::cuda::cudnn_convolution_symint and …_transpose_symint
  Direct<at::Tensor(Tensor, Tensor, SymInts, SymInts, SymInts, c10::SymInt, bool, bool, bool)>::install(
      "aten::cudnn_convolution", key, found,
      "_ZN2at4cuda24cudnn_convolution_symintERKNS_6TensorES3_N3c108ArrayRefINS4_6SymIntEEES7_S7_S6_bbb");
  Direct<at::Tensor(Tensor, Tensor, SymInts, SymInts, SymInts, SymInts, c10::SymInt, bool, bool, bool)>::install(
      "aten::cudnn_convolution_transpose", key, found,
      "_ZN2at4cuda34cudnn_convolution_transpose_symintERKNS_6TensorES3_N3c108ArrayRefINS4_6SymIntEEES7_S7_S7_S6_bbb");
}

}  // namespace msctx::glue
