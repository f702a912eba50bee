// C functions without torch: passes over tensors, and, for tests and tools, single convolutions and threads of this library's own. With
// torch, the glue lends torch's threads.
#include <cstdlib>
#include <thread>

#include "common/run.h"
#include "msctx/process.h"

namespace msctx {
namespace {

int run_in_threads(void* pool, int64_t tasks, void (*task)(void*, int64_t, int), void* arg) {
  return done([&] {
    std::atomic<int64_t> next{0};
    const auto work = [&](int slot) {
      for (int64_t i; (i = next.fetch_add(1)) < tasks;) task(arg, i, slot);
    };
    std::vector<std::jthread> threads;
    for (int slot = 1; slot < int(reinterpret_cast<intptr_t>(pool)); slot++) threads.emplace_back(work, slot);
    work(0);
  });
}

void* allocate(void*, size_t bytes) { return std::aligned_alloc(64, align64(bytes)); }
void release(void*, void* data) { std::free(data); }

const Passes& passes(const char* isa) { return *msctx_table(isa)->passes; }

}  // namespace

Parallel msctx_own_threads(int threads) {
  return threads > 1 ? Parallel{threads, reinterpret_cast<void*>(intptr_t(threads)), run_in_threads} : serial();
}

int msctx_run(const char* isa, int index, const ConvProblem* p, Op op, const ConvTensors* t, int keeps, const Parallel* parallel) {
  const ConvTable& table = *msctx_table(isa);
  bool again = false;
  std::vector<void*> forms;
  const auto form = [](void* self, int, size_t bytes, int (*make)(void* with, void* to), void* with) -> const void* {
    void* const data = bytes ? static_cast<std::vector<void*>*>(self)->emplace_back(allocate(nullptr, bytes)) : nullptr;
    return data && make(with, data) ? data : nullptr;
  };
  const Kept kept{form, &forms};
  const auto run = [&] {
    const Memory memory{allocate, release, nullptr};
    again = conv_run(table, *table.rows[index].algorithm, *p, op, *t, keeps ? &kept : nullptr, memory, *parallel);
  };
  const int all = done(run);
  for (void* const one : forms) release(nullptr, one);
  return all ? again : -1;
}

int msctx_fingerprint(const char* isa, const void* data, int64_t bytes, Fingerprint* found, const Parallel* parallel) {
  return done([&] { *found = passes(isa).fingerprint(data, bytes, *parallel); });
}

int msctx_statistics(const char* isa, DType dtype, const void* data, int64_t count, Statistics* pieces, const Parallel* parallel) {
  return done([&] { passes(isa).statistics(dtype, data, count, pieces, *parallel); });
}

int msctx_has_nonfinite(const char* isa, DType dtype, const void* data, int64_t count) {
  return passes(isa).has_nonfinite(dtype, data, count);
}

int msctx_finish(
    const char* isa, const Epilogue* how, float* result, int64_t n, int64_t channels, int64_t positions, const Parallel* parallel) {
  return done([&] { passes(isa).finish(*how, result, n, channels, positions, true, *parallel); });
}

}  // namespace msctx
