// What a piece of a tensor holds, in one pass: its range, its sums in float64, and how many of its values are of a kind.
#include "msctx/elements.h"
#include "msctx/table.h"

namespace msctx::MSCTX_ISA {
namespace {

constexpr int64_t block = 256;  // values that are widened at once

template <class T>
constexpr int lanes = 64 / sizeof(T);
// Operators act lane by lane; comparisons give -1 and 0.
template <class T, int count>
using Lanes __attribute__((vector_size(count * sizeof(T)))) = T;

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = int32_t;
  static constexpr type infinite = 0x7f800000, magnitude = 0x7fffffff;
};
template <>
struct Bits<double> {
  using type = int64_t;
  static constexpr type infinite = 0x7ff0000000000000, magnitude = 0x7fffffffffffffff;
};

template <class Word>
bool has_exponent(const void* data, int64_t count, Word mask) {
  const auto* from = static_cast<const Word*>(data);
  constexpr int64_t part = 4096;
  for (int64_t start = 0; start < count; start += part) {
    const int64_t end = smaller(count, start + part);
    Word found = 0;
    for (int64_t i = start; i < end; i++) found |= Word((from[i] & mask) == mask);
    if (found) return true;
  }
  return false;
}

// The lanes are added up in order at the end.
template <class T>
struct Sums {
  using Word = typename Bits<T>::type;
  using Values = Lanes<T, lanes<T>>;
  using Words = Lanes<Word, lanes<T>>;
  using Doubles = Lanes<double, lanes<T>>;
  static constexpr T infinity = T(__builtin_inf());
  Values least = Values{} + infinity, largest = Values{} - infinity;
  Doubles sum = {}, squares = {};
  Words nan = {}, positive_inf = {}, negative_inf = {}, zero = {}, negative = {};

  // Of one block: the counts of a lane fit into a word.
  void add(const T* from, int64_t count) {
    if (has_exponent<Word>(from, count, Bits<T>::infinite))
      add_any(from, count);
    else
      add_finite(from, count);
  }

  void add_finite(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += lanes<T>) {
      Values v;
      __builtin_memcpy(&v, from + i, sizeof v);
      add_values(v, v, v);
    }
  }

  void add_any(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += lanes<T>) {
      Values v;
      Words bits;
      __builtin_memcpy(&v, from + i, sizeof v);
      __builtin_memcpy(&bits, from + i, sizeof bits);
      const Words size = bits & Bits<T>::magnitude, is_finite = size < Bits<T>::infinite;
      add_values(is_finite ? v : Values{} + infinity, is_finite ? v : Values{} - infinity, is_finite ? v : Values{});
      zero += is_finite == 0;
      nan -= size > Bits<T>::infinite;
      positive_inf -= bits == Bits<T>::infinite;
      const Words below = bits == (Bits<T>::infinite | ~Bits<T>::magnitude);
      negative_inf -= below;
      negative -= below;
    }
  }

  void add_values(Values up, Values down, Values kept) {
    const Doubles wide = __builtin_convertvector(kept, Doubles);
    least = up < least ? up : least;
    largest = down > largest ? down : largest;
    sum += wide;
    squares += wide * wide;
    zero -= kept == T(0);
    negative -= kept < T(0);
  }

  void into(Statistics& all) const {
    for (int l = 0; l < lanes<T>; l++) {
      all.least = double(least[l]) < all.least ? double(least[l]) : all.least;
      all.largest = double(largest[l]) > all.largest ? double(largest[l]) : all.largest;
      all.sum += sum[l];
      all.squares += squares[l];
      all.nan += nan[l];
      all.positive_inf += positive_inf[l];
      all.negative_inf += negative_inf[l];
      all.zero += zero[l];
      all.negative += negative[l];
    }
  }
};

template <class T, class Wide>
void widen_all(const T* from, int64_t count, Wide* to) {
  for (int64_t i = 0; i < count; i++) to[i] = widen(from[i]);
}

// As to_float does, lane by lane: compilers make no vectors of that.
void widen_all(const Half* from, int64_t count, float* to) {
  using Words = Lanes<int32_t, lanes<float>>;
  int64_t i = 0;
  for (; i + lanes<float> <= count; i += lanes<float>) {
    Lanes<uint16_t, lanes<float>> halves;
    __builtin_memcpy(&halves, from + i, sizeof halves);
    const Words bits = __builtin_convertvector(halves, Words), sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    const auto tiny = __builtin_convertvector(rest, Lanes<float, lanes<float>>) * 0x1p-24f;
    Words small;
    __builtin_memcpy(&small, &tiny, sizeof small);
    const Words normal = (rest << 13) + (rest >= 0x7c00 ? Words{} + (224 << 23) : Words{} + (112 << 23));
    const Words all = sign | (rest < 0x400 ? small : normal);
    __builtin_memcpy(to + i, &all, sizeof all);
  }
  for (; i < count; i++) to[i] = to_float(from[i]);
}

template <class T>
Statistics of(const T* from, int64_t count) {
  using Wide = typename SumOf<T>::type;
  Statistics all;
  all.count = count;
  Sums<Wide> sums;
  Wide wide[block];
  for (int64_t start = 0; start < count; start += block) {
    const int64_t size = smaller(block, count - start);
    int64_t end = size;
    if constexpr (sizeof(T) == sizeof(Wide)) {
      if (size == block) {
        sums.add(from + start, block);
        continue;
      }
    }
    widen_all(from + start, size, wide);
    while (end % lanes<Wide>) wide[end++] = Wide(__builtin_nan("")), all.nan--;
    sums.add(wide, end);
  }
  sums.into(all);
  return all;
}

}  // namespace

Statistics statistics(DType dtype, const void* data, int64_t count) {
  Statistics found;
  with_type(dtype, [&](auto type) { found = of(static_cast<const decltype(type)*>(data), count); });
  return found;
}

bool has_nonfinite(DType dtype, const void* data, int64_t count) {
  switch (dtype) {
    case DType::f64: return has_exponent<int64_t>(data, count, Bits<double>::infinite);
    case DType::f16: return has_exponent<uint16_t>(data, count, 0x7c00);
    case DType::bf16: return has_exponent<uint16_t>(data, count, 0x7f80);
    default: return has_exponent<int32_t>(data, count, Bits<float>::infinite);
  }
}

}  // namespace msctx::MSCTX_ISA
