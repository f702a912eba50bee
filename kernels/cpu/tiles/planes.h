// The planes of some rows of one image, for one group: the source split into parts (see lowered.h).
#pragma once

#include "lowered.h"

namespace msctx::MSCTX_ISA {

template <class S>
class Planes {
 public:
  // For result rows [first, first + rows) of each phase.
  Planes(const Lowered<S>& l, int64_t first, int64_t rows, char* data)
      : l_(l), data_(data), first_(first), height_(rows + l.y.span()), apart_(bytes_apart(l, rows)) {}

  static size_t size(const Lowered<S>& l, int64_t rows) { return size_t(l.blocks * S::parts * bytes_apart(l, rows)); }

  const char* data() const { return data_; }
  int64_t apart() const { return apart_; }  // from part to part; `parts` times that from block to block
  int64_t place(const TapAt& tap) const { return ((tap.phase * height_ + tap.row) * l_.width + tap.column) * tile_bytes; }

  // `source` is the image; `exponent` scales it.
  void fill(const float* source, bool channels_last, int64_t group, int64_t channels, int exponent) const {
    for (int64_t phase = 0; phase < l_.source_phases; phase++) {
      const int64_t across = l_.folded ? 1 : l_.x.source_step, py = phase / across, px = phase % across;
      for (int64_t i = 0; i < height_; i++) {
        const int64_t row = l_.y.source_step * (first_ + i + l_.y.low) + py;
        char* to = data_ + (phase * height_ + i) * l_.width * tile_bytes;
        if (row < 0 || row >= l_.y.source)
          clear(to, 0, l_.width);
        else if (channels_last)
          fill_last(source + row * l_.x.source * channels + group * l_.depth, channels, px, exponent, to);
        else
          fill_first(source + group * l_.depth * l_.y.source * l_.x.source + row * l_.x.source, px, exponent, to);
      }
    }
  }

 private:
  // What lies behind the planes is read, for results that nobody stores.
  static int64_t bytes_apart(const Lowered<S>& l, int64_t rows) {
    const int64_t pixels = l.source_phases * (rows + l.y.span()) * l.width + l.rows_together + l.x.span();
    return (pixels | 1) * tile_bytes;  // odd: blocks do not meet in the cache's sets
  }
  void clear(char* to, int64_t from, int64_t until) const {
    if (until <= from) return;
    for (int64_t i = 0; i < l_.blocks * S::parts; i++) std::memset(to + i * apart_ + from * tile_bytes, 0, size_t(until - from) * tile_bytes);
  }
  // The source column under column 0 of a plane, for element kx of what is folded.
  int64_t start(int64_t px, int64_t kx) const { return l_.folded ? kx * l_.x.dilation - l_.x.pad : l_.x.source_step * l_.x.low + px; }

  static constexpr int64_t bytes_each = tile_bytes / S::depth;

  void fill_last(const float* row, int64_t channels, int64_t px, int exponent, char* to) const {
    const Floats scale = _mm512_set1_ps(float(exponent));
    const int64_t step = l_.x.source_step;
    const auto put = [&](const float* values, int64_t count, int64_t pixel) {  // `count` of them, zeros after
      for (int64_t b = 0; b < l_.blocks; b++)
        for (int64_t i = 0; i < S::depth; i += 16) {
          const int64_t at = b * S::depth + i;
          const Floats v = _mm512_maskz_loadu_ps(first(count - at), values + at);
          S::split(_mm512_scalef_ps(v, scale), to + b * S::parts * apart_ + pixel * tile_bytes + i * bytes_each, apart_);
        }
    };
    if (l_.folded) {
      float together[S::depth];
      for (int64_t j = 0; j < l_.width; j++) {
        for (int64_t kx = 0; kx < l_.x.taps; kx++) {
          const int64_t column = j * step + start(px, kx);
          float* at = together + kx * l_.depth;
          if (column >= 0 && column < l_.x.source)
            std::memcpy(at, row + column * channels, sizeof(float) * size_t(l_.depth));
          else
            std::memset(at, 0, sizeof(float) * size_t(l_.depth));
        }
        put(together, l_.deep, j);
      }
      return;
    }
    const int64_t begin = start(px, 0);
    const int64_t j0 = smaller(l_.width, begin < 0 ? divide_up(-begin, step) : 0);
    const int64_t j1 = larger(j0, smaller(l_.width, l_.x.source > begin ? divide_up(l_.x.source - begin, step) : 0));
    clear(to, 0, j0);
    clear(to, j1, l_.width);
    for (int64_t j = j0; j < j1; j++) put(row + (j * step + begin) * channels, l_.depth, j);
  }

  void fill_first(const float* row, int64_t px, int exponent, char* to) const {
    const Floats scale = _mm512_set1_ps(float(exponent));
    const int64_t plane = l_.y.source * l_.x.source;
    for (int64_t j = 0; j < l_.width; j += 16)
      for (int64_t b = 0; b < l_.blocks; b++)
        for (int64_t i = 0; i < S::depth; i += 16) {
          Floats v[16];
          for (int64_t e = 0; e < 16; e++) {
            const int64_t at = b * S::depth + i + e;
            v[e] = at < l_.deep ? neighbours(row + at % l_.depth * plane, j * l_.x.source_step + start(px, at / l_.depth)) : _mm512_setzero_ps();
          }
          transpose(v);
          char* pixel = to + b * S::parts * apart_ + j * tile_bytes + i * bytes_each;
          for (int64_t e = 0; e < smaller(16, l_.width - j); e++, pixel += tile_bytes) S::split(_mm512_scalef_ps(v[e], scale), pixel, apart_);
        }
  }
  // 16 values of a row from column `begin` on, source_step apart; zeros where there are none.
  Floats neighbours(const float* row, int64_t begin) const {
    const int64_t step = l_.x.source_step, size = l_.x.source;
    const int64_t low = begin < 0 ? divide_up(-begin, step) : 0, high = size > begin ? divide_up(size - begin, step) : 0;
    const __mmask16 there = __mmask16(first(high) & ~first(low));
    if (step == 1) return _mm512_maskz_loadu_ps(there, row + begin);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, _mm512_mullo_epi32(lane, _mm512_set1_epi32(int(step))), row + begin, 4);
  }

  const Lowered<S>& l_;
  char* data_;
  int64_t first_, height_, apart_;
};

}  // namespace msctx::MSCTX_ISA
