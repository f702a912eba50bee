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
    for (int64_t i = 0; i < count; i += lanes<T>) {
      Values v;
      Words bits;
      __builtin_memcpy(&v, from + i, sizeof v);
      __builtin_memcpy(&bits, from + i, sizeof bits);
      const Words size = bits & Bits<T>::magnitude, is_finite = size < Bits<T>::infinite;
      const Values up = is_finite ? v : Values{} + infinity, down = is_finite ? v : Values{} - infinity;
      const Doubles kept = __builtin_convertvector(is_finite ? v : Values{}, Doubles);
      least = up < least ? up : least;
      largest = down > largest ? down : largest;
      sum += kept;
      squares += kept * kept;
      nan -= size > Bits<T>::infinite;
      positive_inf -= bits == Bits<T>::infinite;
      negative_inf -= bits == (Bits<T>::infinite | ~Bits<T>::magnitude);
      zero -= size == 0;
      negative -= v < T(0);
    }
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
    for (int64_t i = 0; i < size; i++) wide[i] = widen(from[start + i]);
    while (end % lanes<Wide>) wide[end++] = Wide(__builtin_nan("")), all.nan--;
    sums.add(wide, end);
  }
  sums.into(all);
  return all;
}

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

}  // namespace

Statistics statistics(DType dtype, const void* data, int64_t count) {
  Statistics found;
  with_type(dtype, [&](auto type) { found = of(static_cast<const decltype(type)*>(data), count); });
  return found;
}

bool has_nonfinite(DType dtype, const void* data, int64_t count) {
  switch (dtype) {
    case DType::f64: return has_exponent<uint64_t>(data, count, uint64_t(Bits<double>::infinite));
    case DType::f16: return has_exponent<uint16_t>(data, count, 0x7c00);
    case DType::bf16: return has_exponent<uint16_t>(data, count, 0x7f80);
    default: return has_exponent<uint32_t>(data, count, uint32_t(Bits<float>::infinite));
  }
}

}  // namespace msctx::MSCTX_ISA
