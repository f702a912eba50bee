// The planes of some rows of one image, for one group: the source split into parts (see lowered.h).
#pragma once

#include "lowered.h"

namespace msctx::MSCTX_ISA {

template <class S>
class Planes {
 public:
  // For result rows [first, first + rows) of each phase. `source` is the image's, with `channels` in all.
  Planes(
      const Lowered<S>& l, int64_t group, int64_t first, int64_t rows, const float* source, bool channels_last, int64_t channels,
      char* data)
      : l_(l), data_(data), first_(first), height_(rows + l.y.span()), apart_(bytes_apart(l, rows)), channels_last_(channels_last),
        channel_step_(channels_last ? 1 : l.y.source * l.x.source), column_step_(channels_last ? channels : 1),
        row_step_(l.x.source * column_step_), source_(source + group * l.depth * channel_step_) {}

  static size_t size(const Lowered<S>& l, int64_t rows) { return size_t(l.blocks * S::parts * bytes_apart(l, rows)); }

  const char* data() const { return data_; }
  int64_t apart() const { return apart_; }  // from part to part; `parts` times that from block to block
  int64_t place(const TapAt& tap) const { return ((tap.phase * height_ + tap.row) * l_.width + tap.column) * tile_bytes; }

  // Of the source rows that these planes are made of; those of all groups, where they lie together.
  Spread spread() const {
    const int64_t begin = larger(0, source_row(0, 0, 0)), last_tap = l_.y.folded ? (l_.y.taps - 1) * l_.y.dilation : 0;
    const int64_t end = smaller(l_.y.source, source_row(l_.y.phases() - 1, height_ - 1, last_tap) + 1);
    if (end <= begin) return {};
    const float* rows = source_ + begin * row_step_;
    if (channels_last_ && l_.groups == 1) return Spread::of(rows, (end - begin) * row_step_);
    if (channels_last_) return Spread::of(rows, l_.depth, (end - begin) * l_.x.source, column_step_);
    return Spread::of(rows, (end - begin) * row_step_, l_.depth, channel_step_);
  }

  void fill(const Scale& scale) const {
    clear(data_, 0, l_.before);
    for (int64_t phase = 0; phase < l_.source_phases; phase++)
      for (int64_t i = 0; i < height_; i++) {
        const int64_t row = source_row(phase / l_.x.phases(), i, 0), begin = l_.first_column(phase % l_.x.phases());
        char* to = data_ + (l_.before + (phase * height_ + i) * l_.width) * tile_bytes;
        if (l_.x.folded)
          fill_folded(row, scale, to);
        else if (row < 0 || row >= l_.y.source)
          clear(to, 0, l_.width);
        else if (channels_last_)
          fill_last(source_ + row * row_step_, begin, scale, to);
        else
          fill_first(source_ + row * row_step_, begin, scale, to);
      }
  }

 private:
  static constexpr int64_t bytes_each = tile_bytes / S::depth;

  // What lies behind the planes is read, for results that nobody stores.
  static int64_t bytes_apart(const Lowered<S>& l, int64_t rows) {
    const int64_t pixels = l.before + l.source_phases * (rows + l.y.span()) * l.width + l.rows_together + larger(0, l.x.high);
    return (pixels | 1) * tile_bytes;  // odd: blocks do not meet in the cache's sets
  }
  int64_t source_row(int64_t phase, int64_t i, int64_t tap) const { return l_.y.source_step * (first_ + i) + l_.first_row(phase) + tap; }

  void clear(char* to, int64_t from, int64_t until) const {
    if (until <= from) return;
    for (int64_t i = 0; i < l_.blocks * S::parts; i++)
      std::memset(to + i * apart_ + from * tile_bytes, 0, size_t(until - from) * tile_bytes);
  }
  // Positions of a plane's row, which begins at source column `begin`, that have a source: [first, second).
  void inside(int64_t begin, int64_t& j0, int64_t& j1) const {
    const int64_t step = l_.x.source_step, size = l_.x.source;
    j0 = smaller(l_.width, begin < 0 ? divide_up(-begin, step) : 0);
    j1 = larger(j0, smaller(l_.width, size > begin ? divide_up(size - begin, step) : 0));
  }

  // `count` values of a pixel, zeros after.
  void put_pixel(const float* values, int64_t count, const Scale& scale, char* to) const {
    for (int64_t b = 0; b < l_.blocks; b++, to += S::parts * apart_)
      for (int64_t i = 0; i < S::depth; i += 16) {
        const int64_t at = b * S::depth + i;
        S::split(scaled<S>(_mm512_maskz_loadu_ps(first(count - at), values + at), scale), to + i * bytes_each, apart_);
      }
  }
  void fill_last(const float* row, int64_t begin, const Scale& scale, char* to) const {
    int64_t j0, j1;
    inside(begin, j0, j1);
    clear(to, 0, j0);
    clear(to, j1, l_.width);
    const float* from = row + (j0 * l_.x.source_step + begin) * column_step_;
    for (int64_t j = j0; j < j1; j++, from += l_.x.source_step * column_step_) put_pixel(from, l_.depth, scale, to + j * tile_bytes);
  }

  // 16 pixels, whose value at a place along the depth is `values`.
  template <class Values>
  void put_pixels(int64_t j, char* to, const Values& values) const {
    for (int64_t b = 0; b < l_.blocks; b++) {
      Floats words[S::parts][16];  // of 16 pixels, `together` neighbours along the depth each
      for (int64_t i = 0; i < 16; i++) {
        Floats v[S::together];
        for (int64_t e = 0; e < S::together; e++) {
          const int64_t at = b * S::depth + i * S::together + e;
          v[e] = at < l_.deep ? values(at) : _mm512_setzero_ps();
        }
        S::split_words(v, reinterpret_cast<char*>(&words[0][i]), sizeof words[0]);
      }
      for (int p = 0; p < S::parts; p++) {
        transpose(words[p]);
        char* pixel = to + (b * S::parts + p) * apart_ + j * tile_bytes;
        for (int64_t e = 0; e < smaller(16, l_.width - j); e++, pixel += tile_bytes) _mm512_storeu_ps(pixel, words[p][e]);
      }
    }
  }
  Floats neighbours(const float* from, __mmask16 there) const { return strided(from, l_.x.source_step * column_step_, there); }
  void fill_first(const float* row, int64_t begin, const Scale& scale, char* to) const {
    int64_t j0, j1;
    inside(begin, j0, j1);
    for (int64_t j = 0; j < l_.width; j += 16) {
      const __mmask16 there = __mmask16(first(j1 - j) & ~first(j0 - j));
      const float* from = row + j * l_.x.source_step + begin;
      put_pixels(j, to, [&](int64_t at) { return scaled<S>(neighbours(from + at * channel_step_, there), scale); });
    }
  }
  // Channels last: the taps of a row are neighbours.
  void fill_folded_last(int64_t row, const Scale& scale, char* to) const {
    float pixel[Lowered<S>::most_folded];
    for (int64_t j = 0; j < l_.width; j++) {
      const int64_t column = l_.first_column(0) + j * l_.x.source_step;
      const int64_t begin = larger(0, -column), count = smaller(l_.x.taps, l_.x.source - column) - begin;
      std::memset(pixel, 0, sizeof(float) * size_t(l_.deep));
      for (int64_t ky = 0; ky < (l_.y.folded ? l_.y.taps : 1); ky++) {
        const int64_t at = row + ky * l_.y.dilation;
        if (count <= 0 || at < 0 || at >= l_.y.source) continue;
        const float* from = source_ + at * row_step_ + (column + begin) * column_step_;
        std::memcpy(pixel + (ky * l_.x.taps + begin) * l_.depth, from, sizeof(float) * size_t(count * l_.depth));
      }
      put_pixel(pixel, l_.deep, scale, to + j * tile_bytes);
    }
  }
  void fill_folded(int64_t row, const Scale& scale, char* to) const {
    if (channels_last_ && column_step_ == l_.depth && l_.x.dilation == 1) return fill_folded_last(row, scale, to);
    struct Element {
      int64_t from, j0, j1;
    } elements[Lowered<S>::most_folded];
    for (int64_t e = 0; e < l_.deep; e++) {
      const auto [channel, ky, kx] = l_.place(e);
      const int64_t at = row + ky * l_.y.dilation, begin = l_.first_column(0) + kx * l_.x.dilation;
      Element& element = elements[e];
      element = {at * row_step_ + begin * column_step_ + channel * channel_step_, 0, 0};
      if (at >= 0 && at < l_.y.source) inside(begin, element.j0, element.j1);
    }
    for (int64_t j = 0; j < l_.width; j += 16)
      put_pixels(j, to, [&](int64_t at) {
        const Element& element = elements[at];
        const __mmask16 there = __mmask16(first(element.j1 - j) & ~first(element.j0 - j));
        return scaled<S>(neighbours(source_ + element.from + j * l_.x.source_step * column_step_, there), scale);
      });
  }

  const Lowered<S>& l_;
  char* data_;
  int64_t first_, height_, apart_;
  bool channels_last_;
  int64_t channel_step_, column_step_, row_step_;  // of the source, in floats
  const float* source_;
};

}  // namespace msctx::MSCTX_ISA
