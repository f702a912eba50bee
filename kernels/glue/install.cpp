// Registers the hook with PyTorch's dispatcher, once a process and for good; and the C functions with which Python steers it.
#include "glue/cuda.h"
#include "glue/hook.h"
#include "glue/kept_weights.h"
#include "glue/python.h"

using namespace msctx;

static auto& kernels_at = immortal<std::array<glue::OurKernels, places>>();  // by Place

// Registers the hook; "" or what went wrong. To be called once.
MSCTX_API const char* msctx_install(glue::PythonFunction warn) {
  using K = c10::DispatchKey;
  return problem_of([&] {
    glue::set_warner(warn);
    const glue::Silent silent;
    glue::install_convolutions<Place::cpu>(K::CPU, kernels_at[int(Place::cpu)]);
    glue::install_routes(Place::cpu, {K::CPU, K::MkldnnCPU, K::QuantizedCPU, K::SparseCPU, K::SparseCsrCPU, K::AutogradCPU});
    glue::install_products<Place::cpu>(kernels_at[int(Place::cpu)]);
    glue::install_finished();
    return "";
  });
}

// Finds cuDNN in `cudnn`, a library that is loaded, and torch's handle for it in `torch_cuda`; then registers the hook of cuDNN's
// algorithms at the dispatch key of this name: CUDA's, or that of a device on which this is tested. "" or what went wrong. To be called once.
MSCTX_API const char* msctx_install_cuda(const char* cudnn, const char* torch_cuda, const char* key_name) {
  return problem_of([&] {
    const std::string problem = glue::load_cudnn(cudnn, torch_cuda);
    glue::find_runtime(torch_cuda);
    if (!problem.empty()) return problem;
    const c10::DispatchKey key = c10::parseDispatchKey(key_name);
    const glue::Silent silent;
    glue::install_convolutions<Place::cuda>(key, kernels_at[int(Place::cuda)]);
    glue::install_routes(Place::cuda, {key, c10::DispatchKey::QuantizedCUDA});
    return problem;
  });
}

// Registers the hook of products at the key of an NPU's tensors, where torch_npu is loaded. "" or what went wrong. To be called once.
MSCTX_API const char* msctx_install_npu(int has_float32) {
  return problem_of([&] {
    const glue::Silent silent;
    glue::set_npu(has_float32);
    glue::install_products<Place::ascend>(kernels_at[int(Place::ascend)]);
    return "";
  });
}

// "" while PyTorch calls our kernels at a place, else whose it calls.
MSCTX_API const char* msctx_hook_problem(int place) {
  return problem_of([&] { return kernels_at[size_t(place)].problem(); });
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
