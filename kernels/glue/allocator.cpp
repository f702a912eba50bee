// The pool as torch's CPU allocator: installed once, for the life of the process; outside scopes it passes all on to torch's own. Tensors
// carry their way of being released with them, so that they may come and go across both borders of a scope. Others do not: oneDNN's
// memory is released by whatever allocator is in force then, which therefore has to know whose pointer it gets.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "glue/kept_weights.h"
#include "glue/scratch.h"
#include "msctx/api.h"
#include "msctx/memory_pool.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

std::string in_words(int64_t bytes) {  // as msctx/effects/memory.py does: both report a cap with the same figure
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
  const auto& [limit, current, peak, allocations, refused] = why.found;
  return text + in_words(current) + " of " + in_words(limit) + " are in use, the peak was " + in_words(peak) + ". The cap is max_device_memory (" +
         cap_origin(why.cap) + "); it counts torch's CPU tensors that were allocated since it was set, and msctx's workspaces, not older " +
         "tensors, NumPy's arrays or code: this process holds " + in_words(resident()) + " in all.";
}

// In every process that has once been in a scope: from torch's allocator comes what is allocated outside.
std::atomic<bool> is_open{false};
thread_local int filling = -1;  // the byte that new memory of a thread is filled with; -1: it is not
c10::Allocator& torchs() { return *c10::GetDefaultCPUAllocator(); }

void release(void* data) {
  if (!data) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  pool_release(data);
}

void release_anybodys(void* data) { (pool_owns(data) ? &release : torchs().raw_deleter())(data); }

// What is kept of weights, and scratch that no call uses.
void drop_workspaces() {
  drop_kept_weights(true);
  trim_scratch(true);
}

class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!is_open.load(std::memory_order_relaxed)) return torchs().allocate(bytes);
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
      if (filling >= 0) std::memset(data, filling, bytes);
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_anybodys; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

PoolAllocator& ours = immortal<PoolAllocator>();  // storages refer to it for as long as they live

// "" or why it cannot be had.
std::string install_allocator() {
  if (c10::GetCPUAllocator() == &ours) return "";
  if (c10::GetCPUAllocator() != &torchs()) return "another library has put an allocator of its own in place of torch's";
  c10::SetCPUAllocator(&ours, 0);  // a higher priority would keep out those that come later
  return c10::GetCPUAllocator() == &ours ? "" : "torch keeps an allocator that was set with a higher priority";
}

}  // namespace
}  // namespace msctx::glue

using namespace msctx;

// Tensors come from the pool (keep: see Keep; piece: bytes), or with keep < 0 from torch's allocator again. "" or why not.
MSCTX_API const char* msctx_pool_set(int keep, int64_t piece) {
  return problem_of([&]() -> std::string {
    if (keep < 0) {
      glue::is_open = false;
      glue::drop_workspaces();  // they are of the pool
      pool_close();
      return "";
    }
    if (std::string problem = glue::install_allocator(); !problem.empty()) return problem;
    pool_open(Keep(keep), size_t(piece));
    glue::is_open = true;
    return "";
  });
}

// 1: nobody has put another allocator in the place of ours.
MSCTX_API int msctx_pool_is_installed() { return c10::GetCPUAllocator() == &glue::ours; }

// Its number; 0: there was no memory for it, and no cap is open.
MSCTX_API int64_t msctx_cap_open(int64_t limit, const char* origin) try {
  glue::drop_workspaces();  // those that are made from now on count
  return cap_open(limit, origin);
} catch (const std::exception&) {
  return 0;
}

// Another limit, which goes on counting. 0: there was no memory for it, and the cap is as it was.
MSCTX_API int msctx_cap_adjust(int64_t cap, int64_t limit, const char* origin) try {
  cap_adjust(cap, limit, origin);
  return 1;
} catch (const std::exception&) {
  return 0;
}

MSCTX_API void msctx_cap_close(int64_t cap) { cap_close(cap); }

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
MSCTX_API int msctx_pool_fill(int byte) { return std::exchange(glue::filling, byte); }  // the one before
MSCTX_API int msctx_pool_purpose(int purpose) { return pool_purpose(purpose); }
MSCTX_API void msctx_pool_purposes(int64_t* bytes, int count, int at_refusal) { pool_purposes(bytes, count, at_refusal != 0); }
MSCTX_API void msctx_pool_reset_peak() { pool_reset_peak(); }
MSCTX_API int64_t msctx_pool_empty_cache() {
  glue::drop_kept_weights();  // of weights that are gone
  glue::trim_scratch(true);
  return pool_empty_cache();
}
