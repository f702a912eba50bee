// The driver's functions, as cuda.h declares them.
#include "glue/cuda_driver.h"

#include <dlfcn.h>

#include <atomic>

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

}  // namespace

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

bool has_driver() { return is_found; }

int bind_context(int device) {
  static std::atomic<void*> contexts[most_devices];  // retained once, for the life of the process
  void* context = nullptr;
  if (const int code = driver.get_context(&context); code || context) return code;
  std::atomic<void*>* kept = device < most_devices ? &contexts[device] : nullptr;
  context = kept ? kept->load() : nullptr;
  if (!context) {
    int number = 0;
    if (const int code = driver.get_device(&number, device)) return code;
    if (const int code = driver.retain_context(&context, number)) return code;
    if (kept) kept->store(context);
  }
  return driver.set_context(context);
}

int launch(void* function, unsigned grid, unsigned threads, void* stream, void** arguments) {
  return driver.launch(function, grid, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
}

bool has_tf32(int device) {
  static std::atomic<int> known[most_devices];  // 0: not asked; else the major version plus one
  if (!is_found || device >= most_devices) return true;
  if (const int major = known[device]) return major - 1 >= 8;
  int number = 0, major = 0;
  if (driver.get_device(&number, device) || driver.get_attribute(&major, compute_capability_major, number)) return true;
  known[device] = major + 1;
  return major >= 8;
}

}  // namespace msctx::glue
