// What follows a result, in vectors: Vec is the includer's. All instruction sets give the same bits.
#pragma once

#include <cmath>
#include <initializer_list>

#include "msctx/conv.h"

namespace msctx::MSCTX_ISA {

// e^x: 2^n e^r, where e^r is its Taylor polynomial of degree 7 for |r| <= ln(2)/2, and ln(2) is split as by W. Cody and W. Waite, "Software
// Manual for the Elementary Functions" (1980). It is no less than the smallest normal number, and from 88.4 on Inf.
static inline Vec exponential(Vec x) {
  x = minimum(Vec::all(88.8f), maximum(Vec::all(-87.3f), x));
  const Vec magic = Vec::all(0x1.8p23f), n = fma(x, Vec::all(1.44269504f), magic) - magic;
  const Vec r = fnma(n, Vec::all(-2.12194440e-4f), fnma(n, Vec::all(0.693359375f), x));
  Vec sum = Vec::all(1.0f / 5040);
  for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = fma(sum, r, Vec::all(factor));
  return sum * power_of_two(n);
}

// x P(X <= x) of a normal distribution: max(x, 0) - |x| Q(|x|), where Q(a) = e^(-a^2/2) t p(t) for t = 1 / (1 + 0.3535 a), and p is fitted
// to 4e-8 of Q; e^(-a^2/2) takes what the square rounded, so that small values keep their bits. |error| <= 2^-20 |result| + 2^-123: beyond
// a = 13 the result is that of 13. A NaN at -Inf, as torch's product with 0 is.
static inline Vec gelu(Vec x) {
  const Vec half = Vec::all(0.5f), one = Vec::all(1.0f);
  const Vec a = minimum(Vec::all(13.0f), maximum(x, Vec::zero() - x));
  const Vec square = a * a, rounded = fma(a, a, Vec::zero() - square);
  const Vec power = exponential(Vec::zero() - half * square), density = fnma(power * half, rounded, power);
  const Vec t = one / fma(Vec::all(0.3535f), a, one);
  Vec sum = Vec::all(-0.029371138f);
  for (const float factor :
       {0.14154005f, -0.24216917f, 0.13747141f, -0.012160966f, 0.1008506f, 0.12166828f, 0.14114793f, 0.141023f})
    sum = fma(sum, t, Vec::all(factor));
  const Vec positive = fma(minimum(Vec::zero(), x), Vec::zero(), maximum(Vec::zero(), x));
  return fnma(a * t * sum, density, positive);
}

// 0.5 x (1 + tanh(u)) is x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). |error| <= 2^-21 (1 + |u|) |result| + 2^-123.
static inline Vec gelu_tanh(Vec x) {
  const Vec cubic = fma(Vec::all(0.044715f) * x * x, x, x);
  return x / (Vec::all(1.0f) + exponential(Vec::all(-1.59576912f) * cubic));
}

static inline Vec clamped(Vec x, Vec low, Vec high) { return minimum(high, maximum(low, x)); }
static inline bool is_clamping(Activation activation) {
  return activation == Activation::none || activation == Activation::relu || activation == Activation::clamp;
}
static inline Vec by_function(Activation activation, Vec v) {
  const Vec one = Vec::all(1.0f), six = Vec::all(6.0f), sixth = Vec::all(1.0f / 6);
  switch (activation) {
    case Activation::silu: return v / (one + exponential(Vec::zero() - v));
    case Activation::sigmoid: return one / (one + exponential(Vec::zero() - v));
    case Activation::hardswish: return v * clamped(v + Vec::all(3.0f), Vec::zero(), six) * sixth;
    case Activation::hardsigmoid: return clamped(v + Vec::all(3.0f), Vec::zero(), six) * sixth;
    case Activation::gelu: return gelu(v);
    case Activation::gelu_tanh: return gelu_tanh(v);
    default: return v;
  }
}
static inline void raise(int64_t* to, int64_t peak) {
  for (int64_t before = __atomic_load_n(to, __ATOMIC_RELAXED); before < peak;)
    if (__atomic_compare_exchange_n(to, &before, peak, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
}

// The arithmetic of an epilogue, of some neighbouring channels, a lane each. What is not given changes no bit.
struct Ending {
  Vec scale = Vec::all(1.0f), shift = Vec::all(-0.0f), low = Vec::all(-INFINITY), high = Vec::all(INFINITY);
  bool adds_last = false;
  // `adds`: there is an `other`. `function`: where it is none that clamps.
  template <bool adds, class Function>
  [[gnu::always_inline]] Vec by(Vec v, Vec other, const Function& function) const {
    v = fma(v, scale, shift);
    if constexpr (!adds) return function(v);
    return adds_last ? function(v) + other : function(v + other);
  }
  template <bool adds>
  [[gnu::always_inline]] Vec by(Vec v, Vec other) const {
    return by<adds>(v, other, [low = low, high = high](Vec x) { return clamped(x, low, high); });
  }
};

// The epilogue of some neighbouring channels, a lane each; or of one channel, in all lanes. Raises their peaks before it.
class Finish {
 public:
  Finish() : Finish(ConvTensors{}, 0, Vec::width) {}  // changes nothing
  // Of `count` channels from `channel` on. `t` may have neither an epilogue nor peaks.
  Finish(const ConvTensors& t, int64_t channel, int count)
      : Finish(t.epilogue, t.peaks ? t.peaks + channel : nullptr, [&](const float* values) { return Vec::load(values + channel, count); }) {
    count_ = count;
    if (!peaks_) return;
    alignas(64) float known[Vec::width] = {};
    for (int i = 0; i < count; i++)  // what equals it is told, too: whose place stays must not depend on the order of tasks
      known[i] = __builtin_bit_cast(float, int32_t(larger(1, bits_of(__atomic_load_n(peaks_ + i, __ATOMIC_RELAXED))) - 1));
    largest_ = Vec::load(known);
  }
  // Of one channel.
  Finish(const Epilogue& e, int64_t channel) : Finish(&e, nullptr, [&](const float* values) { return Vec::all(values[channel]); }) {}

  // Ahead of the epilogue: that it was a result, at place(). Lanes beyond `count` are nobody's. That it is the largest so far is rare.
  template <class Place>
  void note(Vec v, const Place& place) {
    const Vec magnitude = maximum(v, Vec::zero() - v);
    if (peaks_ && any_above(magnitude, largest_)) largest_ = raised(magnitude, place());
  }
  // `other`: that of these lanes, if there is one.
  Vec operator()(Vec v, Vec other) const { return by(v, other, activation_); }
  // The same, by an activation that the compiler knows.
  [[gnu::always_inline]] Vec by(Vec v, Vec other, Activation activation) const {
    const auto function = [&](Vec x) { return by_function(activation, x); };
    if (is_clamping(activation)) return other_ ? ending_.by<true>(v, other) : ending_.by<false>(v, other);
    return other_ ? ending_.by<true>(v, other, function) : ending_.by<false>(v, other, function);
  }
  // body.operator()<activation>(), by which loops over by() need not look in each turn.
  template <class Body>
  void with_activation(const Body& body) const {
    switch (activation_) {
      case Activation::silu: return body.template operator()<Activation::silu>();
      case Activation::sigmoid: return body.template operator()<Activation::sigmoid>();
      case Activation::hardswish: return body.template operator()<Activation::hardswish>();
      case Activation::hardsigmoid: return body.template operator()<Activation::hardsigmoid>();
      case Activation::gelu: return body.template operator()<Activation::gelu>();
      case Activation::gelu_tanh: return body.template operator()<Activation::gelu_tanh>();
      default: return body.template operator()<Activation::clamp>();
    }
  }
  const float* other() const { return other_; }
  // Whether results that are in registers may become final there, by ending().
  bool only_clamps() const { return !peaks_ && is_clamping(activation_); }
  const Ending& ending() const { return ending_; }
  bool is_needed() const { return is_given_ || peaks_; }

 private:
  [[gnu::noinline, gnu::cold]] Vec raised(Vec magnitude, int64_t place) const {
    alignas(64) float now[Vec::width], largest[Vec::width];
    magnitude.store(now);
    largest_.store(largest);
    for (int i = 0; i < Vec::width; i++) {
      if (now[i] <= largest[i]) continue;
      const int32_t bits = now[i] < INFINITY ? __builtin_bit_cast(int32_t, now[i]) : infinity_bits;
      largest[i] = __builtin_bit_cast(float, bits);
      if (i < count_) raise(peaks_ + i, peak_of(bits, place));
    }
    return Vec::load(largest);
  }
  template <class Lanes>
  Finish(const Epilogue* e, int64_t* peaks, const Lanes& lanes)
      : activation_(e ? e->activation : Activation::none),
        is_given_(e),
        other_(e ? e->other : nullptr),
        peaks_(peaks) {
    if (!e) return;
    ending_.adds_last = e->adds_last;
    if (e->scale) ending_.scale = lanes(e->scale);
    if (e->shift) ending_.shift = lanes(e->shift);
    if (activation_ == Activation::relu) ending_.low = Vec::zero();
    if (activation_ == Activation::clamp) ending_.low = Vec::all(e->low), ending_.high = Vec::all(e->high);
  }

  Activation activation_;
  bool is_given_;
  const float* other_;
  int64_t* peaks_;
  int count_ = Vec::width;
  Ending ending_;
  Vec largest_ = Vec::zero();
};

// Rows of sums, `from` floats apart, into a part of a float32 result of `columns`: from `place` on, which lies in `column`. Finished, if told.
static inline void store_rows(
    const ConvTensors& t, int64_t rows, int64_t across, const float* sums, int64_t from, float* result, int64_t place, int64_t columns,
    int64_t column) {
  constexpr int width = Vec::width;
  int64_t j = 0;
  const auto stored = [&]<int vectors>(std::integral_constant<int, vectors>, const auto count) {
    const Finish left(t, column + j, count), right = vectors == 2 ? Finish(t, column + j + width, count) : left;
    left.with_activation([&]<Activation how>() {
      const Finish first = left, second = right;  // copies: as far as the compiler knows, a store might change what is captured
      const auto* other = first.other() ? first.other() + place + j : sums;
      const auto finished = [&](const Finish& finish, int64_t i, int v) {
        const Vec added = finish.other() ? Vec::load(other + i * columns + v, count) : Vec::zero();
        finish.by(Vec::load(sums + i * from + j + v, count), added, how).store(result + place + j + i * columns + v, count);
      };
      for (int64_t i = 0; i < rows; i++) {
        finished(first, i, 0);
        if constexpr (vectors == 2) finished(second, i, width);
      }
    });
  };
  for (; j + 2 * width <= across; j += 2 * width) stored(std::integral_constant<int, 2>(), std::integral_constant<int, width>());
  for (; j < across; j += width) stored(std::integral_constant<int, 1>(), int(smaller(width, across - j)));
}

}  // namespace msctx::MSCTX_ISA
