// The pool as torch's CPU allocator. Each tensor carries its own way of being released, so that it may come and go across both borders
// of a scope; what is resized keeps the allocator that it began with.
#include "glue/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>

#include "glue/kept_weights.h"
#include "glue/scratch.h"
#include "msctx/api.h"
#include "msctx/memory_pool.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::mutex& lock = fork_safe_mutex();
std::map<int64_t, std::string>& origins() {  // of caps
  static auto* all = new std::map<int64_t, std::string>;
  return *all;
}

std::string in_words(int64_t bytes) {  // as msctx/effects/memory.py does: a cap is told with the same figure by both
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 5; unit++) value /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.4g %s", value, units[unit]);
  return text;
}

// What the process holds in all, by the system's count; 0: it cannot be asked.
int64_t resident() {
  int64_t pages = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*d %" SCNd64, &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * sysconf(_SC_PAGESIZE);
}

std::string message(size_t bytes, const Refusal& why) {
  std::string text = "CPU out of memory: tried to allocate " + in_words(int64_t(bytes)) + ". ";
  if (why.cap < 0) return text + "The system has no memory left for it; this process holds " + in_words(resident()) + " in all.";
  std::string origin;
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (const auto found = origins().find(why.cap); found != origins().end()) origin = found->second;
  }
  const auto& [limit, current, peak, allocations, refused] = why.found;
  return text + in_words(current) + " of " + in_words(limit) + " are in use, the peak was " + in_words(peak) + ". The cap is max_device_memory (" +
         origin + "); it counts torch's CPU tensors that were allocated since it was set, and msctx's workspaces, not older tensors, NumPy's " +
         "arrays or code: this process holds " + in_words(resident()) + " in all.";
}

void release(void* data) {
  if (!data) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  pool_release(data);
}

// What is kept of weights, and scratch that no call uses.
void drop_workspaces() {
  drop_kept_weights(true);
  trim_scratch(true);
}

class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes) {
      Refusal why;
      data = pool_allocate(bytes, why);
      if (!data) {
        drop_workspaces();
        data = pool_allocate(bytes, why);
      }
      if (!data) {
        pool_refused(why.cap);
        c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
        C10_THROW_ERROR(OutOfMemoryError, message(bytes, why));
      }
      c10::profiledCPUMemoryReporter().New(data, bytes);
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

PoolAllocator& ours() {
  static auto* one = new PoolAllocator;  // storages refer to it for as long as they live
  return *one;
}
c10::Allocator* found = nullptr;  // before ours

}  // namespace

std::string install_allocator() {
  c10::Allocator* const current = c10::GetCPUAllocator();
  if (current == &ours()) return "";
  if (current != c10::GetDefaultCPUAllocator()) return "another library has put an allocator of its own in place of torch's";
  c10::SetCPUAllocator(&ours(), 0);  // a higher priority could never be taken back
  if (c10::GetCPUAllocator() != &ours()) return "torch keeps an allocator that was set with a higher priority";
  found = current;
  return "";
}

void remove_allocator() {
  if (c10::GetCPUAllocator() == &ours()) c10::SetCPUAllocator(found, 0);
}

}  // namespace msctx::glue

using namespace msctx;

// Installs the pool (keep: see Keep; piece: bytes), or with keep < 0 takes it away. "" or why not.
MSCTX_API const char* msctx_pool_set(int keep, int64_t piece) {
  static std::string problem;
  problem.clear();
  if (keep < 0) {
    glue::remove_allocator();
    glue::drop_workspaces();  // they are of the pool
    pool_close();
  } else if (problem = glue::install_allocator(); problem.empty()) {
    pool_open(Keep(keep), size_t(piece));
  }
  return problem.c_str();
}

// 1: it is ours that torch allocates from now.
MSCTX_API int msctx_pool_is_installed() { return c10::GetCPUAllocator() == &glue::ours(); }

MSCTX_API int64_t msctx_cap_open(int64_t limit, const char* origin) {
  glue::drop_workspaces();  // those that are made from now on count
  const int64_t cap = cap_open(limit);
  const std::lock_guard<std::mutex> guard(glue::lock);
  glue::origins()[cap] = origin;
  return cap;
}

// Another limit, which goes on counting.
MSCTX_API void msctx_cap_adjust(int64_t cap, int64_t limit, const char* origin) {
  cap_adjust(cap, limit);
  const std::lock_guard<std::mutex> guard(glue::lock);
  glue::origins()[cap] = origin;
}

MSCTX_API void msctx_cap_close(int64_t cap) {
  cap_close(cap);
  const std::lock_guard<std::mutex> guard(glue::lock);
  glue::origins().erase(cap);
}

// limit, current, peak, allocations, out_of_memory; 0: there is no such cap.
MSCTX_API int msctx_cap_statistics(int64_t cap, int64_t found[5]) {
  CapStatistics statistics;
  if (!cap_statistics(cap, statistics)) return 0;
  std::memcpy(found, &statistics, sizeof statistics);
  return 1;
}

MSCTX_API void msctx_pool_statistics(int64_t found[9]) {
  const PoolStatistics statistics = pool_statistics();
  std::memcpy(found, &statistics, sizeof statistics);
}
MSCTX_API int msctx_pool_purpose(int purpose) { return pool_purpose(purpose); }
MSCTX_API void msctx_pool_purposes(int64_t* bytes, int count, int at_refusal) { pool_purposes(bytes, count, at_refusal != 0); }
MSCTX_API void msctx_pool_reset_peak() { pool_reset_peak(); }
MSCTX_API int64_t msctx_pool_empty_cache() { return pool_empty_cache(); }
