// Torch's CPU allocator while a context counts memory: caps on all that is allocated since they were set, and a small cache of large
// blocks, since fresh pages cost more than most operators. Installed once, for the life of the process; outside of contexts it passes all
// on to torch's own. oneDNN releases by the allocator that is in force then, which therefore has to know its own blocks. Scratch of our
// kernels always comes from here.
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "glue/kept_weights.h"
#include "msctx/interface.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

constexpr size_t alignment = 64, page = 4096, large = size_t(256) << 10;  // malloc keeps the pages of smaller blocks
constexpr int64_t most_idle_blocks = 1024;
constexpr int64_t most_scratch = int64_t(256) << 20;  // idle, where no context counts memory
constexpr int64_t most_outside = int64_t(64) << 20;   // of scopes: one that is entered for each step or request finds it

struct Block {
  size_t bytes, capacity;  // requested; of the memory
  int64_t caps_opened;     // when it was allocated: these count it; -1: none does
  bool is_scratch;         // of any size it is kept: small ones that malloc gets back and gives to others would leave holes
};
struct Idle {
  size_t capacity;
  void* data;
};
struct Cap {
  int64_t number, limit, current = 0, peak = 0, allocations = 0, out_of_memory = 0;
  std::string origin{};  // who has set it
};
struct Pool {
  std::unordered_map<const void*, Block> used;
  std::vector<Idle> idle;      // the last used at the end
  std::vector<void*> retired;  // released but not freed: no other block gets their addresses
  int percent = -1;            // blocks in use and idle ones are together no more than this part of the peak
  int64_t highest = 0, idle_bytes = 0, caps_opened = 0;  // highest: the most in use since `percent` was set
  std::vector<Cap> caps{{0, INT64_MAX}};  // the first one counts all, for the life of the process
};
std::mutex& pool_lock = fork_safe_mutex();
Pool& pool = immortal<Pool>();  // tensors are released while the process ends, and after
std::atomic<bool> is_open{false};

// As far as the allocator itself, all functions are called with the lock held.
Cap* cap_of(int64_t number) {  // nullptr: there is none
  const auto found = std::ranges::find(pool.caps, number, &Cap::number);
  return found == pool.caps.end() ? nullptr : &*found;
}

// The longest unused goes first.
int64_t shrink_to(int64_t bytes) {
  const int64_t before = pool.idle_bytes;
  auto end = pool.idle.begin();
  for (; end != pool.idle.end() && (pool.idle_bytes > bytes || pool.idle.end() - end > most_idle_blocks); ++end) {
    pool.idle_bytes -= int64_t(end->capacity);
    std::free(end->data);
  }
  pool.idle.erase(pool.idle.begin(), end);
  return before - pool.idle_bytes;
}

// How many bytes may be idle when so many more are in use.
int64_t most_idle(int64_t more = 0) {
  if (pool.percent < 0) return msctx_in_force(Place::cpu) ? most_scratch : most_outside;
  const int64_t used = pool.caps[0].current + more, highest = std::max(pool.highest, used);
  return std::max<int64_t>(0, highest * pool.percent / 100 - used);
}

// The smallest idle block that is no more than an eighth too large, and of several the last used.
void* take_idle(Block& block) {
  auto best = pool.idle.end();
  for (auto one = pool.idle.begin(); one != pool.idle.end(); ++one)
    if (one->capacity >= block.bytes && one->capacity <= block.bytes + block.bytes / 8)
      if (best == pool.idle.end() || one->capacity <= best->capacity) best = one;
  if (best == pool.idle.end()) return nullptr;
  void* const data = best->data;
  block.capacity = best->capacity;
  pool.idle_bytes -= int64_t(block.capacity);
  pool.idle.erase(best);
  return data;
}

void count(const Block& block, int64_t bytes) {
  for (Cap& cap : pool.caps) {
    if (block.caps_opened < cap.number) continue;
    cap.current += bytes;
    cap.peak = std::max(cap.peak, cap.current);
    cap.allocations += bytes > 0;
  }
  pool.highest = std::max(pool.highest, pool.caps[0].current);
}

// nullptr: there is no memory; `why`: the cap that refuses it, or one without a number.
void* allocate(size_t bytes, bool is_scratch, bool is_last_try, Cap& why) {
  const std::lock_guard<std::mutex> guard(pool_lock);
  int64_t room = most_idle(int64_t(bytes));
  for (Cap& cap : pool.caps) {
    const int64_t left = cap.limit - cap.current;
    room = std::min(room, left - int64_t(bytes));
    if (left >= int64_t(bytes)) continue;
    pool.caps[0].out_of_memory += is_last_try, cap.out_of_memory += is_last_try;
    return why = cap, nullptr;
  }
  Block block{bytes, bytes, is_open ? pool.caps_opened : -1, is_scratch};
  void* data = take_idle(block);
  shrink_to(room);
  const auto has_memory = [&] { return data || !posix_memalign(&data, pool.percent ? alignment : page, bytes); };
  if (!has_memory() && !(shrink_to(0) && has_memory())) {
    pool.caps[0].out_of_memory += is_last_try;
    return why = {}, nullptr;
  }
  pool.used[data] = block;
  count(block, int64_t(bytes));
  return data;
}

bool is_ours(const void* data) {
  const std::lock_guard<std::mutex> guard(pool_lock);
  return pool.used.contains(data);
}

void release(void* data) {
  if (!data) return;
  c10::profiledCPUMemoryReporter().Delete(data);
  const std::lock_guard<std::mutex> guard(pool_lock);
  const Block block = pool.used.extract(data).mapped();
  count(block, -int64_t(block.bytes));
  if (pool.percent == 0) {
    madvise(data, block.capacity / page * page, MADV_DONTNEED);  // whole pages go back to the system at once
    return pool.retired.push_back(data);
  }
  if (!block.is_scratch && (pool.percent < 0 || block.capacity < large)) return std::free(data);
  pool.idle.push_back({block.capacity, data});
  pool.idle_bytes += int64_t(block.capacity);
  shrink_to(most_idle());
}

c10::Allocator& torchs() { return *c10::GetDefaultCPUAllocator(); }
void release_anybodys(void* data) { (is_ours(data) ? &release : torchs().raw_deleter())(data); }

std::string message(size_t bytes, const Cap& why) {
  const std::string text = "CPU out of memory: tried to allocate " + in_words(int64_t(bytes)) + ". ";
  if (!why.number) return text + "The system has no memory left for it.";
  return text + in_words(why.current) + " of " + in_words(why.limit) + " are in use, the peak was " + in_words(why.peak) +
      ". The cap is max_device_memory (" + why.origin + "); it counts PyTorch's CPU tensors allocated since it was set, and workspaces.";
}

void* taken(size_t bytes, bool is_scratch = false) {
  Cap why{};
  void* data = allocate(bytes, is_scratch, false, why);
  if (!data) drop_kept_weights(true), data = allocate(bytes, is_scratch, true, why);
  if (!data) {
    c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
    C10_THROW_ERROR(OutOfMemoryError, message(bytes, why));
  }
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return data;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (!is_open.load(std::memory_order_relaxed)) return torchs().allocate(bytes);
    void* const data = bytes ? taken(bytes) : nullptr;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_anybodys; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator& ours = immortal<Allocator>();  // storages refer to it for as long as they live

}  // namespace

// In eight sizes to each doubling: ever larger exact ones would each find all idle blocks too small.
void* take_scratch(size_t bytes) {
  const size_t step = std::bit_floor(std::max(bytes, page)) / 8;
  return taken((bytes + step - 1) / step * step, true);
}
void release_scratch(void* data) { release(data); }
void trim_scratch() {
  const std::lock_guard<std::mutex> guard(pool_lock);
  shrink_to(most_idle());
}

// Memory is counted, and blocks are kept (see Pool; 0: none, and no address is used twice). With percent < 0 memory comes from torch's
// allocator again. "" or why not.
MSCTX_API const char* msctx_pool_set(int percent) {
  return problem_of([&]() -> std::string {
    if (percent >= 0 && c10::GetCPUAllocator() != &ours) {
      if (c10::GetCPUAllocator() != &torchs()) return "another library has replaced torch's allocator";
      c10::SetCPUAllocator(&ours, 0);  // a higher priority would keep out those that come later
      if (c10::GetCPUAllocator() != &ours) return "torch keeps an allocator that was set with a higher priority";
    }
    if (percent < 0) drop_kept_weights(true);  // they would go on to count
    is_open = percent >= 0;
    const std::lock_guard<std::mutex> guard(pool_lock);
    pool.idle.reserve(most_idle_blocks + 1);  // to release a block takes no memory
    pool.percent = percent, pool.highest = pool.caps[0].current;
    shrink_to(percent < 0 ? 0 : most_idle());
    for (void* data : std::exchange(pool.retired, {})) std::free(data);
    return "";
  });
}

MSCTX_API int msctx_pool_is_installed() { return c10::GetCPUAllocator() == &ours; }  // 0: another one has taken its place

// A new cap, with `number` 0, or another limit for one, which goes on counting. Returns its number.
MSCTX_API int64_t msctx_cap_set(int64_t number, int64_t limit, const char* origin) {
  if (!number) drop_kept_weights(true);  // those that are made from now on count
  const std::lock_guard<std::mutex> guard(pool_lock);
  if (number) return cap_of(number)->origin = origin, cap_of(number)->limit = limit, number;
  pool.caps.push_back({.number = pool.caps_opened + 1, .limit = limit, .origin = origin});
  return ++pool.caps_opened;
}

MSCTX_API void msctx_cap_close(int64_t number) {
  const std::lock_guard<std::mutex> guard(pool_lock);
  std::erase_if(pool.caps, [&](const Cap& cap) { return cap.number == number; });
}

// limit, current, peak, allocations, out_of_memory of a cap, or with `number` 0 of all that was counted; and how many bytes are idle.
MSCTX_API void msctx_cap_counts(int64_t number, int64_t found[6]) {
  const std::lock_guard<std::mutex> guard(pool_lock);
  const Cap* cap = cap_of(number);
  for (int64_t count : {cap->limit, cap->current, cap->peak, cap->allocations, cap->out_of_memory, pool.idle_bytes}) *found++ = count;
}

MSCTX_API void msctx_pool_reset_peak() {
  const std::lock_guard<std::mutex> guard(pool_lock);
  pool.caps[0].peak = pool.caps[0].current;
}

MSCTX_API int64_t msctx_pool_empty_cache() {
  drop_kept_weights();  // of weights that are gone
  const std::lock_guard<std::mutex> guard(pool_lock);
  return shrink_to(0);
}

}  // namespace msctx::glue
