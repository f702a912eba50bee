// Puts an allocator of its own in the place of torch's, as another library may.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace {

struct Other final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Other other;

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void take(int priority) { c10::SetCPUAllocator(&other, uint8_t(priority)); }
EXPORTED int is_in_force() { return c10::GetCPUAllocator() == &other; }
