// An epilogue as a pass over a result, for algorithms that store it without.

#include "vec.h"

#include "msctx/epilogue.h"

namespace msctx::MSCTX_ISA {

void finish(const Epilogue& e, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel& parallel) {
  constexpr int64_t width = Vec::width, together = 4096;  // results in a task, about
  const ConvTensors t{.epilogue = &e};
  const auto other_at = [&](int64_t at, int count) { return e.other ? Vec::load(e.other + at, count) : Vec::zero(); };
  if (channels_last) {
    const int64_t pixels = n * positions, each = larger(1, together / larger(1, channels));
    parallel_for(parallel, divide_up(pixels, each), [&](int64_t task, int) {
      for (int64_t c = 0; c < channels; c += width) {
        const int count = int(smaller(width, channels - c));
        const Finish finish(t, c, count);
        for (int64_t i = task * each; i < smaller(pixels, (task + 1) * each); i++) {
          const int64_t at = i * channels + c;
          finish(Vec::load(result + at, count), other_at(at, count)).store(result + at, count);
        }
      }
    });
    return;
  }
  parallel_for(parallel, n * channels, [&](int64_t task, int) {
    const Finish finish(e, task % channels);
    for (int64_t i = 0; i < positions; i += width) {
      const int count = int(smaller(width, positions - i));
      const int64_t at = task * positions + i;
      finish(Vec::load(result + at, count), other_at(at, count)).store(result + at, count);
    }
  });
}

}  // namespace msctx::MSCTX_ISA
