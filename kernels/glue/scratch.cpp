// The pool of scratch: blocks in use, and idle ones up to a limit, which is lower while no policy is in force. Their sizes are in classes:
// ever larger exact ones would each find all holes too small that those before have left.
#include "glue/kept_weights.h"

#include <c10/core/Allocator.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <list>
#include <utility>

#include "msctx/interface.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

constexpr size_t most_idle = size_t(256) << 20;
constexpr size_t most_outside = size_t(64) << 20;  // of scopes: one that is entered for each step or request finds it
constexpr size_t most_blocks = 64, least = 4096;

struct Block {
  at::DataPtr data;
  size_t bytes;
};
using Blocks = std::list<Block>;
std::mutex& scratch_lock = fork_safe_mutex();
struct Pool {
  Blocks used, idle;  // the idle ones: last used first
  size_t idle_bytes = 0;
};
Pool& pool = immortal<Pool>();

// The smallest idle block that holds `bytes` and not much more. The lock is held.
bool take_idle(size_t bytes) {
  auto best = pool.idle.end();
  for (auto block = pool.idle.begin(); block != pool.idle.end(); ++block)
    if (block->bytes >= bytes && block->bytes / 2 <= bytes && (best == pool.idle.end() || block->bytes < best->bytes)) best = block;
  if (best == pool.idle.end()) return false;
  pool.idle_bytes -= best->bytes;
  pool.used.splice(pool.used.begin(), pool.idle, best);
  return true;
}

// What was used longest ago goes first, until no more than `bytes` are idle. The lock is held.
void drop(size_t bytes, Blocks& dropped) {
  while (pool.idle_bytes > bytes || pool.idle.size() > most_blocks) {
    pool.idle_bytes -= pool.idle.back().bytes;
    dropped.splice(dropped.begin(), pool.idle, std::prev(pool.idle.end()));
  }
}

// Frees them. glibc keeps what it has once freed as large a block of before; it costs milliseconds to have it give memory back.
void free_blocks(Blocks&& dropped) {
  static std::atomic<size_t> freed{0};
  size_t bytes = 0;
  for (const Block& block : dropped) bytes += block.bytes;
  dropped.clear();
  if (freed.fetch_add(bytes) + bytes < (size_t(64) << 20)) return;
  freed = 0;
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void trim(size_t bytes) {
  Blocks dropped;  // freed when the lock is not held
  {
    const std::lock_guard<std::mutex> guard(scratch_lock);
    drop(bytes, dropped);
  }
  free_blocks(std::move(dropped));
}

Block fresh(size_t bytes) try {
  return {c10::GetAllocator(c10::kCPU)->allocate(bytes), bytes};
} catch (const std::exception&) {  // what is idle may be what is missing
  trim(0);
  return {c10::GetAllocator(c10::kCPU)->allocate(bytes), bytes};
}

// Eight sizes to each doubling.
size_t size_of(size_t bytes) {
  const size_t step = std::bit_floor(std::max(bytes, least)) / 8;
  return (bytes + step - 1) / step * step;
}

}  // namespace

void* take_scratch(size_t asked) {
  const size_t bytes = size_of(asked);
  {
    const std::lock_guard<std::mutex> guard(scratch_lock);
    if (take_idle(bytes)) return pool.used.front().data.get();
  }
  Blocks made;
  made.push_back(fresh(bytes));
  const std::lock_guard<std::mutex> guard(scratch_lock);
  pool.used.splice(pool.used.begin(), made);
  return pool.used.front().data.get();
}

void release_scratch(void* data) {
  Blocks dropped;
  {
    const std::lock_guard<std::mutex> guard(scratch_lock);
    auto block = pool.used.begin();
    while (block->data.get() != data) ++block;
    pool.idle_bytes += block->bytes;
    pool.idle.splice(pool.idle.begin(), pool.used, block);
    drop(msctx_in_force(Place::cpu) ? most_idle : most_outside, dropped);
  }
  free_blocks(std::move(dropped));
}

void trim_scratch(bool all) { trim(all ? 0 : most_outside); }

}  // namespace msctx::glue
