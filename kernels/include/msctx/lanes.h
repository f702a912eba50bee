// Channels as lanes: a block of Vec::width channels of an image as one vector a pixel, from either layout of the tensors and back.
#pragma once

#include "msctx/conv.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {

constexpr int64_t lanes = Vec::width;

// One channel a lane: element i of lane l is at data[offset[l] + i * step]. Lanes from `count` on repeat the last one: nobody keeps them.
struct Planes {
  float* data;
  int64_t offset[lanes];
  int64_t step;
  int count;
  bool adjacent() const { return offset[count - 1] - offset[0] == count - 1 && (step > 1 || count == 1); }
};

// Lane l is the channel `first + l * by`, of `channels`, divided by `share`, of an image of `extent` pixels.
static inline Planes planes_of(
    float* image, int64_t extent, int64_t channels, bool channels_last, int64_t first, int count, int64_t by = 1, int64_t share = 1) {
  Planes planes{image, {}, channels_last ? channels : 1, count};
  for (int l = 0; l < lanes; l++) {
    const int64_t channel = (first + smaller(l, count - 1) * by) / share;
    planes.offset[l] = channels_last ? channel : channel * extent;
  }
  return planes;
}

static inline void fill_zeros(float* to, int64_t vectors) {
  for (int64_t i = 0; i < vectors; i++) Vec::zero().store(to + i * lanes);
}

// The vectors of `pixels` elements from `first` on, `columns` of them side by side, the next row `pitch` floats further.
static inline void read_lanes(const Planes& from, int64_t first, int64_t pixels, float* to, int64_t columns, int64_t pitch) {
  int64_t column = 0;
  const auto put = [&](Vec v) {
    v.store(to + column * lanes);
    if (++column == columns) {
      column = 0;
      to += pitch;
    }
  };
  if (from.adjacent()) {
    const float* at = from.data + from.offset[0] + first * from.step;
    if (from.count < lanes)
      for (int64_t i = 0; i < pixels; i++, at += from.step) put(Vec::load(at, from.count));
    else
      for (; pixels > 0; pixels -= columns, to += pitch)
        for (int64_t i = 0; i < smaller(columns, pixels); i++, at += from.step) {
          __builtin_prefetch(at + 12 * from.step);  // pixels lie too far apart for the processor to see what comes next
          Vec::load(at).store(to + i * lanes);
        }
    return;
  }
  for (int64_t i = 0; i < pixels; i += lanes) {
    const int count = int(smaller(lanes, pixels - i));
    const float* at = from.data + (first + i) * from.step;
    Vec block[lanes];
    if (from.step == 1) {
      for (int l = 0; l < lanes; l++) block[l] = Vec::load(at + from.offset[l], count);
      transpose(block);
    } else {
      float values[lanes];
      for (int j = 0; j < count; j++) {
        for (int l = 0; l < lanes; l++) values[l] = at[from.offset[l] + j * from.step];
        block[j] = Vec::load(values);
      }
    }
    for (int j = 0; j < count; j++) put(block[j]);
  }
}

// The way back, of vectors that lie side by side.
static inline void write_lanes(const Planes& to, int64_t first, int64_t pixels, const float* from) {
  if (to.adjacent()) {
    float* at = to.data + to.offset[0] + first * to.step;
    for (int64_t i = 0; i < pixels; i++, at += to.step)
      to.count == lanes ? Vec::load(from + i * lanes).store(at) : Vec::load(from + i * lanes).store(at, to.count);
    return;
  }
  for (int64_t i = 0; i < pixels; i += lanes) {
    const int count = int(smaller(lanes, pixels - i));
    Vec block[lanes];
    for (int j = 0; j < lanes; j++) block[j] = j < count ? Vec::load(from + (i + j) * lanes) : Vec::zero();
    transpose(block);
    for (int l = 0; l < to.count; l++) block[l].store(to.data + to.offset[l] + first + i, count);
  }
}

// Whether `vectors` of them hold neither Inf nor NaN: zero times those is no zero.
static inline bool all_finite(const float* values, int64_t vectors) {
  constexpr int chains = 4;  // so that the additions need not wait for each other
  Vec sum[chains] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  int64_t i = 0;
  for (; i + chains <= vectors; i += chains)
    for (int j = 0; j < chains; j++) sum[j] = fma(Vec::load(values + (i + j) * lanes), Vec::zero(), sum[j]);
  for (; i < vectors; i++) sum[0] = fma(Vec::load(values + i * lanes), Vec::zero(), sum[0]);
  float each[lanes];
  (sum[0] + sum[1] + (sum[2] + sum[3])).store(each);
  for (const float value : each)
    if (value != 0.0f) return false;
  return true;
}

}  // namespace msctx::MSCTX_ISA
