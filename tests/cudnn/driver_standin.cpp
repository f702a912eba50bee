// A library with the functions of the CUDA driver that msctx calls, for machines without CUDA. A cubin is here the path of kernels that
// a C++ compiler has made (tests/kernels/cuda/emulated.py): they are loaded, looked up and run as cuda.h says of the real ones.
#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { ok = 0, invalid_value = 1, invalid_context = 201, not_found = 500, launch_failed = 719 };

struct Function {
  void* module;
  void* symbol;
  std::string name;
};

std::mutex lock;  // of the log, and of a launch: threads of the emulation are fibers of one
std::string log;
int launches_left = -1;  // before one fails; negative: none does
thread_local int capture_mode = 0;
int the_context;
thread_local void* current = nullptr;  // the context of a thread: none, until somebody sets it

}  // namespace

API const char* driver_log() {
  static std::string told;
  const std::lock_guard<std::mutex> guard(lock);
  told.swap(log);
  log.clear();
  return told.c_str();
}
API void driver_break(int launches) { launches_left = launches; }

API int cuInit(unsigned) { return ok; }
API int cuGetErrorString(int code, const char** text) {
  *text = code == launch_failed ? "unspecified launch failure" : "invalid argument";
  return ok;
}
API int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal ? invalid_value : ok; }
API int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &the_context, ok; }
API int cuCtxSetCurrent(void* context) { return current = context, ok; }
API int cuCtxGetCurrent(void** context) { return *context = current, ok; }
API int cuCtxGetDevice(int* device) { return *device = 0, current ? ok : invalid_context; }
API int cuDeviceGetAttribute(int* value, int attribute, int) { return *value = attribute == 75 ? 9 : 0, ok; }
API int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return ok;
}

API int cuModuleLoadData(void** module, const void* image) {
  if (!current) return invalid_context;
  if (capture_mode != 2) return invalid_value;  // not while a graph may be recorded
  *module = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  const std::lock_guard<std::mutex> guard(lock);
  log += "load\n";
  return *module ? ok : invalid_value;
}
API int cuModuleGetFunction(void** function, void* module, const char* name) {
  void* symbol = dlsym(module, name);
  if (symbol) *function = new Function{module, symbol, name};
  return symbol ? ok : not_found;
}
API int cuModuleUnload(void*) { return ok; }

API int cuLaunchKernel(
    void* function, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned threads, unsigned block_y, unsigned block_z, unsigned shared,
    void* stream, void** arguments, void** extra) {
  const std::lock_guard<std::mutex> guard(lock);
  if (!function || grid == 0 || grid_y * grid_z * block_y * block_z != 1 || shared || extra) return invalid_value;
  if (!current) return invalid_context;
  const Function& found = *static_cast<Function*>(function);
  log += found.name + " stream " + std::to_string(reinterpret_cast<size_t>(stream)) + "\n";
  if (launches_left >= 0 && launches_left-- == 0) return launch_failed;
  const auto run = reinterpret_cast<bool (*)(void*, void* const*, int, const void*, unsigned, unsigned, bool)>(
      dlsym(found.module, "emulated_depthwise"));
  const int tensors = found.name.find("finish") == std::string::npos ? 3 : 2;
  void* places[3];
  for (int i = 0; i < tensors; i++) places[i] = *static_cast<void**>(arguments[i]);
  return run(found.symbol, places, tensors, arguments[tensors], grid, threads, false) ? ok : launch_failed;
}
