// Registers the hook with PyTorch's dispatcher, once a process and for good; and the C functions with which Python steers it.
#include "glue/cuda.h"
#include "glue/hook.h"
#include "glue/kept_weights.h"
#include "glue/python.h"
#include "glue/registered.h"
#include "glue/tensors.h"

namespace msctx::glue {

namespace {

auto& in_force_at = immortal<std::array<InForce, places>>();  // by Place

// The same for CUDA tensors: cuDNN's algorithms, as named. `key` is CUDA's, or that of a device on which this is tested.
void install_cuda(c10::DispatchKey key) {
  const Silent silent;
  install_convolutions<Place::cuda>(key, in_force_at[int(Place::cuda)]);
  install_routes(Place::cuda, {key, c10::DispatchKey::QuantizedCUDA});
}

void install() {
  constexpr c10::DispatchKey CPU = c10::DispatchKey::CPU;
  const Silent silent;
  install_convolutions<Place::cpu>(CPU, in_force_at[int(Place::cpu)]);
  install_routes(Place::cpu, {CPU, c10::DispatchKey::MkldnnCPU, c10::DispatchKey::QuantizedCPU, c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU,
                              c10::DispatchKey::AutogradCPU});
  install_products<Place::cpu>(in_force_at[int(Place::cpu)]);
  install_finished();
}

}  // namespace

}  // namespace msctx::glue

using namespace msctx;

// Registers the hook; "" or what went wrong. To be called once.
MSCTX_API const char* msctx_install(glue::PythonFunction warn) {
  return problem_of([&] {
    glue::set_warner(warn);
    glue::install();
    return "";
  });
}

// Finds cuDNN in `cudnn`, a library that is loaded, and torch's handle for it in `torch_cuda`; then registers the hook at the
// dispatch key of this name. "" or what went wrong. To be called once.
MSCTX_API const char* msctx_install_cuda(const char* cudnn, const char* torch_cuda, const char* key) {
  return problem_of([&] {
    const std::string problem = glue::load_cudnn(cudnn, torch_cuda);
    glue::find_runtime(torch_cuda);
    if (problem.empty()) glue::install_cuda(c10::parseDispatchKey(key));
    return problem;
  });
}

// Registers the hook of products at the key of an NPU's tensors, where torch_npu is loaded. "" or what went wrong. To be called once.
MSCTX_API const char* msctx_install_npu(int has_float32) {
  return problem_of([&] {
    const glue::Silent silent;
    glue::set_npu(has_float32);
    glue::install_products<Place::ascend>(glue::in_force_at[int(Place::ascend)]);
    return "";
  });
}

// "" while our kernels are in force at a place, else whose is.
MSCTX_API const char* msctx_hook_problem(int place) {
  return problem_of([&] { return glue::in_force_at[size_t(place)].problem(); });
}

// `json`: a ConvPolicy of Python's; nullptr: none. 0: there was no memory for it.
MSCTX_API int msctx_set_policy(int place, const char* json) {
  const bool is_cpu = Place(place) == Place::cpu;
  const ConvTable& table = is_cpu ? *msctx_table(nullptr) : Place(place) == Place::cuda ? glue::cuda_table() : glue::npu_table();
  if (!msctx_put_in_force(Place(place), json, &table)) return 0;
  if (is_cpu) glue::drop_kept_weights();
  if (is_cpu && !json) glue::trim_scratch();
  return 1;
}

// `function(table)` is called in the thread of a convolution before and while its problem is measured; it answers with a Permission.
MSCTX_API void msctx_ask_before_measuring(glue::PythonFunction function) {
  static std::atomic<glue::PythonFunction> ask;
  ask = function;
  msctx_set_permission([](int32_t table) { return Permission(glue::call_python(ask, long(Permission::not_this_call), "(i)", int(table))); });
}
