// The CUDA driver; depthwise convolutions of CUDA tensors: the rows `direct`, and the launches.
#include "glue/cuda.h"

#include <dlfcn.h>

#include <map>
#include <memory>

#include "glue/python.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

constexpr int most_devices = 64;
enum { compute_capability_major = 75 };  // CUdevice_attribute

struct Driver {
  int (*get_device)(int* device, int ordinal) = nullptr;
  int (*get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*retain_context)(void** context, int device) = nullptr;
  int (*get_context)(void** context) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*launch)(
      void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream, void** arguments,
      void** extra) = nullptr;
};
Driver driver;
bool is_found = false;

// "" or what is missing.
const char* find_driver(const char* library) {
  void* found = dlopen(library, RTLD_NOW);
  const char* missing = found ? "" : "libcuda.so.1";
  const auto get = [&](auto& function, const char* name) {
    *reinterpret_cast<void**>(&function) = found ? dlsym(found, name) : nullptr;
    if (!function && !*missing) missing = name;
  };
  get(driver.get_device, "cuDeviceGet");
  get(driver.get_attribute, "cuDeviceGetAttribute");
  get(driver.retain_context, "cuDevicePrimaryCtxRetain");
  get(driver.get_context, "cuCtxGetCurrent");
  get(driver.set_context, "cuCtxSetCurrent");
  get(driver.launch, "cuLaunchKernel");
  is_found = !*missing;
  return missing;
}

void check(int code, const char* what) {
  if (code) throw CudaFailed(std::string(what) + ": CUresult " + std::to_string(code));
}

// Has the device's primary context be current in this thread. torch does that when it first needs to, which for device 0 may be never
// in a thread that only runs what others have prepared.
void bind_context(int device) {
  static std::atomic<void*> contexts[most_devices];  // retained once, for the life of the process
  constexpr const char* none = "the driver has no context for this device";
  void* context = nullptr;
  check(driver.get_context(&context), none);
  if (context) return;
  std::atomic<void*>* kept = device < most_devices ? &contexts[device] : nullptr;
  context = kept ? kept->load() : nullptr;
  if (!context) {
    int number = 0;
    check(driver.get_device(&number, device), none);
    check(driver.retain_context(&context, number), none);
    if (kept) kept->store(context);
  }
  check(driver.set_context(context), none);
}

}  // namespace

bool has_tf32(int device) {
  static std::atomic<int> known[most_devices];  // 0: not asked; else the major version plus one
  if (!is_found || device >= most_devices) return true;
  if (const int major = known[device]) return major - 1 >= 8;
  int number = 0, major = 0;
  if (driver.get_device(&number, device) || driver.get_attribute(&major, compute_capability_major, number)) return true;
  known[device] = major + 1;
  return major >= 8;
}

namespace {

// From Python. The arguments of a kernel are pointers to `count` tensors, of 0: x, 1: w, 2: y, 3: workspace; then the parameters.
struct CudaLaunch {
  void* function;  // CUfunction
  uint32_t grid, threads;
  int32_t count, tensor[4];
  int32_t bytes;
  unsigned char parameters[256];
};
struct CudaPlan {
  int64_t workspace;  // bytes
  int64_t additions;  // the longest chain of them in a result
  int32_t launches;
  CudaLaunch launch[2];
  char obstacle[512];  // why there is none, ended by 0
};

std::mutex& cuda_depthwise_lock = fork_safe_mutex();

// What runs for a problem of the device that is current. With `load` the kernels are ready to be launched; else only the sizes are
// known. 1: found; 0: there is an obstacle, for good; -1: there is one this time.
PythonFunction plan_in_python = nullptr;

// Python is asked once for each, with no lock held: it may wait for the interpreter's own. Throws CudaFailed.
std::shared_ptr<const CudaPlan> planned(const ConvProblem& p, Op op, bool load) {
  constexpr size_t most = 4096;
  static auto& all = immortal<std::map<std::string, std::shared_ptr<const CudaPlan>>>();
  const ConvCall& call = call_in_question();
  const std::string key = (key_of(p, call) += char(op)) += char(load);
  {
    const std::lock_guard<std::mutex> guard(cuda_depthwise_lock);
    if (const auto found = all.find(key); found != all.end()) return found->second;
  }
  if (load) bind_context(call.device);
  auto made = std::make_shared<CudaPlan>();
  if (const long found = call_python(plan_in_python, -1, "(KiiiK)", &p, int(op), int(call.channels_last), int(load), made.get()); found <= 0) {
    if (found < 0) msctx_decide_anew();
    throw CudaFailed(*made->obstacle ? made->obstacle : "it was interrupted", /*for_good=*/found == 0);
  }
  const std::lock_guard<std::mutex> guard(cuda_depthwise_lock);
  if (all.size() >= most) all.clear();
  return all.try_emplace(key, std::move(made)).first->second;
}

void reasons(const ConvProblem& p, Op op, Reasons&);

size_t workspace(const ConvProblem& p, Op op, int) { return is_empty(p) ? 0 : size_t(planned(p, op, false)->workspace); }

double error(const ConvProblem& p, Op op) {
  if (is_empty(p)) return 0.0;
  const double unit = p.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double rounded = p.dtype == DType::f16 ? 0x1p-11 : p.dtype == DType::bf16 ? 0x1p-8 : 0.0;
  return unit * double(planned(p, op, false)->additions) + rounded;
}

bool run(const ConvProblem& p, Op op, const ConvTensors& t, const Prepared&, void* memory, const Parallel&) {
  const auto plan = planned(p, op, true);
  const int device = call_in_question().device;
  bind_context(device);
  void* places[] = {t.x, t.w, t.y, memory};
  for (int i = 0; i < plan->launches; i++) {
    const CudaLaunch& one = plan->launch[i];
    void* arguments[5];
    for (int j = 0; j < one.count; j++) arguments[j] = &places[one.tensor[j]];
    arguments[one.count] = const_cast<unsigned char*>(one.parameters);
    check(
        driver.launch(one.function, one.grid, 1, 1, one.threads, 1, 1, 0, stream_of(device), arguments, nullptr),
        "the driver refuses to launch it");
  }
  return true;
}

constexpr ConvAlgorithm depthwise{
    .name = "direct",
    .math = "strict",
    .fixed_order = true,
    .same_on_every_isa = false,
    .reasons = reasons,
    .workspace = workspace,
    .error = error,
    .run = run,
    .reads_channels_last = true,
};

void reasons(const ConvProblem& p, Op op, Reasons& found) {
  found.add_if(p.groups < 2 || p.groups != p.c, "cuDNN has none of this name, and msctx's own for CUDA computes depthwise convolutions only");
  found.add_if(p.dims == 3, "it computes no 3-D convolutions");
  bool is_whole = true;
  for (int i = 0; i < 3; i++)
    is_whole = is_whole && p.out[i] == (p.in[i] + 2 * p.pad[i] - p.dilation[i] * (p.window[i] - 1) - 1) / p.stride[i] + 1;
  found.add_if(!is_whole, "its output_padding is larger than the rest that the stride leaves");
  found.add_if(!is_found, "the CUDA driver has not been found");
  if (!found.count) add_failure(depthwise, p, op, found);
  if (found.count || is_empty(p)) return;
  try {
    planned(p, op, false);
  } catch (const CudaFailed& failed) {
    found.add(permanent(failed.what()));
  }
}

}  // namespace

std::vector<ConvRow> cuda_depthwise_rows() {
  std::vector<ConvRow> rows;
  for (const Direction direction : {Direction::fprop, Direction::dgrad, Direction::wgrad})
    rows.push_back({direction, "direct", &depthwise, nullptr});
  return rows;
}

}  // namespace msctx::glue

using namespace msctx::glue;

// Who plans, and where the driver is. "" or what it lacks: then nothing of ours runs.
MSCTX_API const char* msctx_serve_cuda_kernels(PythonFunction plan, const char* driver) {
  plan_in_python = plan;
  return find_driver(driver);
}
MSCTX_API int msctx_cuda_plan_size() { return int(sizeof(CudaPlan)); }
MSCTX_API int msctx_conv_problem_size() { return int(sizeof(msctx::ConvProblem)); }
