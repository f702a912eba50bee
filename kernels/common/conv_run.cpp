// Runs an algorithm, and looks after what none of them does itself: results that are not finite, and the gradient of the bias.
#include <cmath>
#include <cstring>

#define MSCTX_ISA generic
#include "msctx/api.h"
#include "msctx/elements.h"

namespace msctx {
namespace {

constexpr int64_t chunk = 1 << 16;

// float32 only: what spreads_nonfinite algorithms compute.
bool all_finite(const float* values, int64_t count, const Parallel& parallel) {
  bool bad = false;
  parallel_for(parallel, divide_up(count, chunk), [&](int64_t index, int) {
    const float* from = values + index * chunk;
    const int64_t n = smaller(chunk, count - index * chunk);
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
      uint32_t bits;
      std::memcpy(&bits, from + i, sizeof bits);
      bits &= 0x7fffffff;
      largest = bits > largest ? bits : largest;
    }
    if (largest >= 0x7f800000) __atomic_store_n(&bad, true, __ATOMIC_RELAXED);
  });
  return !bad;
}

struct Scratch {
  const Memory& memory;
  void* data;
  Scratch(const Memory& memory, size_t bytes) : memory(memory), data(bytes ? memory.allocate(memory.arg, bytes) : nullptr) {}
  ~Scratch() {
    if (data) memory.release(memory.arg, data);
  }
  Scratch(const Scratch&) = delete;
};

template <class T>
void sum_channels(const T* y, int64_t n, int64_t channels, int64_t positions, T* bias, const Parallel& parallel) {
  constexpr int lanes = 8;  // sums side by side, so that the additions need not wait for each other
  parallel_for(parallel, channels, [&](int64_t c, int) {
    double sums[lanes] = {};
    for (int64_t i = 0; i < n; i++) {
      const T* from = y + (i * channels + c) * positions;
      int64_t j = 0;
      for (; j + lanes <= positions; j += lanes)
        for (int l = 0; l < lanes; l++) sums[l] += generic::to_double(from[j + l]);
      for (int l = 0; j < positions; j++, l++) sums[l] += generic::to_double(from[j]);
    }
    double sum = 0.0;
    for (double part : sums) sum += part;
    bias[c] = generic::from_double<T>(sum);
  });
}

}  // namespace

const ConvAlgorithm* algorithm_named(const ConvTable& table, const char* name) {
  for (int i = 0; i < table.count; i++)
    if (std::strcmp(table.rows[i].algorithm->name, name) == 0) return table.rows[i].algorithm;
  return nullptr;
}

bool conv_run(
    const ConvTable& table, const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, const ConvTensors& t, const Memory& memory,
    const Parallel& parallel) {
  {
    const Scratch scratch(memory, algorithm.workspace(p, op, parallel.threads));
    algorithm.run(p, op, t, scratch.data, parallel);
  }
  if (!algorithm.spreads_nonfinite) return false;
  const auto* result = static_cast<const float*>(op == Op::forward ? t.y : op == Op::backward_data ? t.x : t.w);
  const int64_t count = op == Op::forward ? y_size(p) : op == Op::backward_data ? x_size(p) : w_size(p);
  if (all_finite(result, count, parallel)) return false;
  const ConvAlgorithm& safe = *algorithm_named(table, safe_algorithm);
  const Scratch scratch(memory, safe.workspace(p, op, parallel.threads));
  safe.run(p, op, t, scratch.data, parallel);
  return true;
}

void bias_gradient(const ConvProblem& p, const void* y, int64_t channels, int64_t positions, void* bias, const Parallel& parallel) {
  generic::with_type(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    sum_channels(static_cast<const T*>(y), p.n, channels, positions, static_cast<T*>(bias), parallel);
  });
}

}  // namespace msctx
