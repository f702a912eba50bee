// Threads allocate and release at random against caps; each block is filled, and looked at before it is released. Others map memory
// meanwhile, at addresses that the pool has just given back, and the kernel refuses to take back every eighth mapping.
//     pool_stress OPERATIONS THREADS
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "msctx/memory_pool.h"
#include "msctx/process.h"

using namespace msctx;

namespace {

std::atomic<bool> is_refusing{false};
std::atomic<unsigned> unmapped{0};

}  // namespace

// Linked with --wrap=munmap.
extern "C" int __real_munmap(void*, size_t);
extern "C" int __wrap_munmap(void* start, size_t bytes) {
  if (!is_refusing || unmapped++ % 8) return __real_munmap(start, bytes);
  errno = ENOMEM;
  return -1;
}

namespace {

struct Block {
  unsigned char* data;
  size_t bytes;
  unsigned char with;
};

std::atomic<long> refused{0}, broken{0};

// Every page and both ends.
template <class See>
void each(const Block& block, const See& see) {
  for (size_t i = 0; i < block.bytes; i += 4096) see(block.data[i]);
  if (block.bytes) see(block.data[block.bytes - 1]);
}

void work(unsigned seed, long operations, std::vector<Block>& left) {
  std::mt19937_64 random(seed);
  std::vector<Block> held;
  for (long i = 0; i < operations; i++) {
    const auto what = random() % 100;
    if (what == 0) {
      pool_empty_cache();
    } else if (what == 1) {
      const int64_t cap = cap_open(int64_t(random() % (64 << 20)));
      Refusal why;
      void* data = pool_allocate(random() % (8 << 20), why);
      CapStatistics found;
      if (!cap_statistics(cap, found) || found.current < 0 || found.current > found.limit || found.peak < found.current) broken++;
      pool_release(data);
      cap_close(cap);
    } else if (what == 2) {
      const size_t bytes = size_t(8) << 20;
      void* foreign = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      for (size_t at = 0; at < bytes; at += 4096) broken += pool_owns(static_cast<char*>(foreign) + at);
      __real_munmap(foreign, bytes);
      broken += pool_owns(nullptr) || pool_owns(&foreign) || pool_owns(reinterpret_cast<void*>(~uintptr_t(0)));
    } else if (what < 55 || held.empty()) {
      const size_t bytes = size_t(1) << random() % 25;
      Refusal why;
      Block block{nullptr, bytes + random() % bytes, static_cast<unsigned char>(random())};
      block.data = static_cast<unsigned char*>(pool_allocate(block.bytes, why));
      if (!block.data) {
        refused++;
        continue;
      }
      if (reinterpret_cast<uintptr_t>(block.data) % 64 || !pool_owns(block.data) || pool_size_of(block.data) != block.bytes) broken++;
      each(block, [&](unsigned char& byte) { byte = block.with; });
      held.push_back(block);
    } else {
      std::swap(held[random() % held.size()], held.back());
      each(held.back(), [&](unsigned char& byte) { broken += byte != held.back().with; });
      pool_release(held.back().data);
      held.pop_back();
    }
  }
  left = std::move(held);
}

}  // namespace

int main(int count, char** arguments) {
  const long operations = count > 1 ? std::atol(arguments[1]) : 10000, threads = count > 2 ? std::atol(arguments[2]) : 4;
  const int64_t cap = cap_open(int64_t(256) << 20);
  for (const Keep keep : {Keep::all, Keep::some, Keep::nothing}) {
    pool_open(keep, size_t(8) << 20);
    is_refusing = true;
    std::vector<std::vector<Block>> left{size_t(threads)};
    std::vector<std::thread> running;
    for (long i = 0; i < threads; i++) running.emplace_back(work, unsigned(i), operations, std::ref(left[size_t(i)]));
    for (auto& thread : running) thread.join();
    pool_close();  // blocks outlive it
    for (auto& blocks : left)
      for (const Block& block : blocks) {
        each(block, [&](unsigned char& byte) { broken += byte != block.with; });
        pool_release(block.data);
      }
    is_refusing = false;
    pool_empty_cache();
    const PoolStatistics found = pool_statistics();
    if (found.current || found.idle || found.reserved || found.allocations != found.released) broken++;
  }
  CapStatistics found;
  if (!cap_statistics(cap, found) || found.current || found.peak > found.limit) broken++;
  cap_close(cap);
  std::printf("%ld refused, %ld broken\n", refused.load(), broken.load());
  return broken.load() != 0;
}
