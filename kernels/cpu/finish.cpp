// Passes over images: an epilogue, for algorithms that store their results without; and what Finish notes, of any images.

#include "vec.h"

#include "msctx/epilogue.h"

namespace msctx::MSCTX_ISA {

namespace finish_only {
namespace {

constexpr int64_t width = Vec::width, together = 4096;  // results in a task, about

// body(channel, count, first, last) for blocks of channels and pieces of the pixels.
template <class Body>
void for_blocks(int64_t pixels, int64_t channels, const Parallel& parallel, const Body& body) {
  const int64_t each = larger(1, together / larger(1, channels));
  parallel_for(parallel, divide_up(pixels, each), [&](int64_t task, int) {
    for (int64_t c = 0; c < channels; c += width)
      body(c, int(smaller(width, channels - c)), task * each, smaller(pixels, (task + 1) * each));
  });
}

}  // namespace
}  // namespace finish_only

using namespace finish_only;

void peaks(
    const float* values, int64_t n, int64_t channels, int64_t positions, bool channels_last, int64_t* found, const Parallel& parallel) {
  const ConvTensors t{.peaks = found};
  if (channels_last)
    return for_blocks(n * positions, channels, parallel, [&](int64_t c, int count, int64_t first, int64_t last) {
      Finish noted(t, c, count);
      for (int64_t i = first; i < last; i++) noted.note(Vec::load(values + i * channels + c, count), [&] { return i; });
    });
  parallel_for(parallel, n * channels, [&](int64_t task, int) {
    int64_t each[width] = {};
    Finish noted({.peaks = each}, 0, width);
    for (int64_t i = 0; i < positions; i += width)
      noted.note(Vec::load(values + task * positions + i, int(smaller(width, positions - i))), [&] { return task / channels * positions + i; });
    for (int i = 0; i < width; i++)
      if (each[i]) raise(found + task % channels, peak_of(bits_of(each[i]), place_of(each[i]) + i));
  });
}

void finish(const Epilogue& e, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel& parallel) {
  const ConvTensors t{.epilogue = &e};
  const auto other_at = [&](int64_t at, int count) { return e.other ? Vec::load(e.other + at, count) : Vec::zero(); };
  if (channels_last)
    return for_blocks(n * positions, channels, parallel, [&](int64_t c, int count, int64_t first, int64_t last) {
      const Finish finish(t, c, count);
      for (int64_t at = first * channels + c; at < last * channels; at += channels)
        finish(Vec::load(result + at, count), other_at(at, count)).store(result + at, count);
    });
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
