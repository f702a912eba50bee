// Single convolutions without torch, with threads of their own: for tests and tools. With torch, the glue uses torch's threads.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "common/run.h"

namespace msctx {
namespace {

void run_in_threads(void* pool, int64_t tasks, void (*task)(void*, int64_t, int), void* arg) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int slot) {
    for (int64_t i; (i = next.fetch_add(1)) < tasks;) task(arg, i, slot);
  };
  std::vector<std::thread> threads;
  for (int slot = 1; slot < *static_cast<int*>(pool); slot++) threads.emplace_back(work, slot);
  work(0);
  for (std::thread& thread : threads) thread.join();
}

// `threads` lives as long as what is returned.
Parallel in_threads(int& threads) { return threads > 1 ? Parallel{threads, &threads, run_in_threads} : serial(); }

void* allocate(void*, size_t bytes) { return std::aligned_alloc(64, align64(bytes)); }
void release(void*, void* data) { std::free(data); }

const ConvAlgorithm& algorithm(const char* isa, int index) { return *msctx_table(isa)->rows[index].algorithm; }

}  // namespace

int msctx_row(const char* isa, int index, MsctxRow* row) {
  const ConvTable* table = msctx_table(isa);
  if (table == nullptr || index < 0 || index >= table->count) return 0;
  const ConvRow& found = table->rows[index];
  const ConvAlgorithm& a = *found.algorithm;
  *row = {found.name, a.name, a.math, int32_t(found.direction), a.fixed_order, a.same_on_every_isa, a.reads_channels_last,
          a.finishes, a.prepared_size != nullptr};
  return 1;
}

int msctx_reasons(const char* isa, int index, const ConvProblem* p, Op op, const char** reasons) {
  Reasons found;
  algorithm(isa, index).reasons(*p, op, found);
  for (int i = 0; i < found.count; i++) reasons[i] = found.text[i];
  return found.count;
}

int64_t msctx_workspace(const char* isa, int index, const ConvProblem* p, Op op, int threads) {
  return int64_t(memory_of(algorithm(isa, index), *p, op, threads));
}

double msctx_error(const char* isa, int index, const ConvProblem* p, Op op) { return algorithm(isa, index).error(*p, op); }

void msctx_fingerprint(const char* isa, const void* data, int64_t bytes, int threads, uint64_t* low_and_high) {
  const Fingerprint found = msctx_table(isa)->passes->fingerprint(data, bytes, in_threads(threads));
  low_and_high[0] = found.low, low_and_high[1] = found.high;
}

int msctx_statistics(const char* isa, DType dtype, const void* data, int64_t count, int threads, Statistics* pieces) {
  const auto* passes = msctx_table(isa)->passes;
  passes->statistics(dtype, data, count, pieces, in_threads(threads));
  return passes->has_nonfinite(dtype, data, count);
}

int msctx_run(
    const char* isa, int index, const ConvProblem* p, Op op, void* x, void* w, void* y, int channels_last, const Epilogue* epilogue,
    int threads) try {
  const Parallel parallel = in_threads(threads);
  const Memory memory{allocate, release, nullptr};
  return conv_run(*msctx_table(isa), algorithm(isa, index), *p, op, {x, w, y, channels_last != 0, epilogue}, nullptr, memory, parallel);
} catch (const std::exception&) {
  return -1;
}

}  // namespace msctx
