// What a piece of a tensor holds, in one pass: its range, its sums in float64, and how many of its values are of a kind.
#include "msctx/elements.h"
#include "msctx/table.h"

namespace msctx::MSCTX_ISA {
namespace {

constexpr int lanes = 16;
constexpr int64_t block = 256;  // values that are widened at once

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = uint32_t;
  static constexpr type infinite = 0x7f800000u, magnitude = 0x7fffffffu;
};
template <>
struct Bits<double> {
  using type = uint64_t;
  static constexpr type infinite = 0x7ff0000000000000u, magnitude = 0x7fffffffffffffffu;
};

// Lane by lane, so that compilers find vectors; the lanes are added up in order at the end.
template <class T>
struct Sums {
  using Word = typename Bits<T>::type;
  T least[lanes], largest[lanes];
  double sum[lanes], squares[lanes];
  Word nan[lanes], positive[lanes], negative_inf[lanes], zero[lanes], negative[lanes];

  Sums() {
    for (int l = 0; l < lanes; l++) {
      least[l] = T(__builtin_inf()), largest[l] = -T(__builtin_inf());
      sum[l] = squares[l] = 0;
      nan[l] = positive[l] = negative_inf[l] = zero[l] = negative[l] = 0;
    }
  }

  void add(const T* from) {
    for (int l = 0; l < lanes; l++) {
      const T v = from[l];
      Word bits;
      __builtin_memcpy(&bits, &v, sizeof bits);
      const Word size = bits & Bits<T>::magnitude;
      const bool is_finite = size < Bits<T>::infinite;
      const T kept = is_finite ? v : T(0);
      least[l] = is_finite && v < least[l] ? v : least[l];
      largest[l] = is_finite && v > largest[l] ? v : largest[l];
      sum[l] += double(kept);
      squares[l] += double(kept) * double(kept);
      nan[l] += size > Bits<T>::infinite;
      positive[l] += bits == Bits<T>::infinite;
      negative_inf[l] += bits == (Bits<T>::infinite | ~Bits<T>::magnitude);
      zero[l] += size == 0;
      negative[l] += v < T(0);
    }
  }

  void into(Statistics& all) const {
    for (int l = 0; l < lanes; l++) {
      all.least = double(least[l]) < all.least ? double(least[l]) : all.least;
      all.largest = double(largest[l]) > all.largest ? double(largest[l]) : all.largest;
      all.sum += sum[l];
      all.squares += squares[l];
      all.nan += int64_t(nan[l]);
      all.positive_inf += int64_t(positive[l]);
      all.negative_inf += int64_t(negative_inf[l]);
      all.zero += int64_t(zero[l]);
      all.negative += int64_t(negative[l]);
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
  int64_t padded = 0;
  for (int64_t start = 0; start < count; start += block) {
    const int64_t size = smaller(block, count - start);
    for (int64_t i = 0; i < size; i++) wide[i] = widen(from[start + i]);
    int64_t end = size;
    while (end % lanes) wide[end++] = Wide(__builtin_nan("")), padded++;
    for (int64_t i = 0; i < end; i += lanes) sums.add(wide + i);
  }
  sums.into(all);
  all.nan -= padded;
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
    case DType::f64: return has_exponent<uint64_t>(data, count, Bits<double>::infinite);
    case DType::f16: return has_exponent<uint16_t>(data, count, 0x7c00);
    case DType::bf16: return has_exponent<uint16_t>(data, count, 0x7f80);
    default: return has_exponent<uint32_t>(data, count, Bits<float>::infinite);
  }
}

}  // namespace msctx::MSCTX_ISA
