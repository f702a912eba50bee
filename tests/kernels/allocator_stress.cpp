// Threads allocate and release at random against caps, as tensors and by the raw interface; each block is filled, and looked at before it
// is released.
//     allocator_stress OPERATIONS THREADS
#include "glue/allocator.cpp"

#include <cstring>
#include <random>
#include <thread>

// Nothing else of the library is linked.
void msctx::glue::drop_kept_weights(bool) {}
int msctx::msctx_in_force(Place) { return 0; }

using namespace msctx::glue;

namespace {

struct Held {
  c10::DataPtr data{};
  size_t bytes = 0;
  int with = 0;
};
std::atomic<long> refused{0}, broken{0};

Held fresh(size_t bytes, int with) try {
  Held block{c10::GetCPUAllocator()->allocate(bytes), bytes, with};
  const auto free_raw = [](void* data) { c10::GetCPUAllocator()->raw_deallocate(data); };  // as oneDNN, which does not know whose it is
  if (with % 2) block.data = {block.data.get(), block.data.release_context(), free_raw, c10::Device(c10::kCPU)};
  broken += reinterpret_cast<uintptr_t>(block.data.get()) % 64 != 0;
  std::memset(block.data.get(), with, bytes);
  return block;
} catch (const c10::OutOfMemoryError&) {
  refused++;
  return {};
}

void look(const Held& block) {
  for (size_t i = 0; i < block.bytes; i += 4093) broken += static_cast<unsigned char*>(block.data.get())[i] != block.with;
}

void work(unsigned seed, long operations) {
  std::mt19937_64 random(seed);
  std::vector<Held> held;
  for (long i = 0; i < operations; i++) {
    const auto what = random() % 100;
    if (what == 0) msctx_pool_empty_cache();
    if (what == 1) msctx_pool_set(int(random() % 3) * 100 - 100);
    if (what == 2) {
      const int64_t cap = msctx_cap_set(0, int64_t(random() % (64 << 20)), "");
      look(fresh(random() % (8 << 20), 1));
      msctx_cap_close(cap);
    } else if (what < 55 || held.empty()) {
      const size_t bytes = size_t(1) << random() % 24;
      held.push_back(fresh(bytes + random() % bytes, int(random() % 256)));
    } else {
      std::swap(held[random() % held.size()], held.back());
      look(held.back());
      held.pop_back();
    }
  }
}

}  // namespace

int main(int, char** arguments) {
  msctx_pool_set(150);
  const int64_t cap = msctx_cap_set(0, int64_t(128) << 20, "");
  std::vector<std::thread> running;
  for (unsigned i = 0; i < unsigned(std::atol(arguments[2])); i++) running.emplace_back(work, i, std::atol(arguments[1]));
  for (auto& thread : running) thread.join();
  msctx_pool_set(-1);
  int64_t counts[6];
  msctx_cap_counts(cap, counts);
  broken += counts[1] || counts[2] > counts[0] || counts[5];
  std::printf("%ld refused, %ld broken\n", refused.load(), broken.load());
  return broken.load() != 0;
}
