// What a tensor holds, in one pass: its range, its sums in float64, and how many of its values are of a kind.
#include "msctx/elements.h"
#include "msctx/table.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {
namespace statistics_only {
namespace {

constexpr int64_t block = 512;  // values that are read at once: in the first cache
constexpr int64_t ahead = 4096;  // bytes to fetch before they are needed

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

// The square of a float is exact as a double, so that a fused step rounds to the same bits.
template <class Of, class Doubles>
inline Doubles with_squares(Doubles sums, Doubles v) {
  if constexpr (sizeof(Of) == sizeof(float)) {
#if defined(__AVX512F__)
    return Doubles(_mm512_fmadd_pd(__m512d(v), __m512d(v), __m512d(sums)));
#elif defined(__FMA__)
    return Doubles(_mm256_fmadd_pd(__m256d(v), __m256d(v), __m256d(sums)));
#endif
  }
  return sums + v * v;
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

// A value counts for one of `lanes`, the same on every instruction set, which are added up in order at the end. What a register holds of
// them is read at a time, so that its sums stay in registers.
template <class T>
struct Sums {
  // `parts`: of a register, as doubles.
  static constexpr int lanes = 64 / sizeof(T), width = Vec::width * sizeof(float) / sizeof(T), parts = sizeof(double) / sizeof(T);
  using Word = typename Bits<T>::type;
  using Values = Lanes<T, width>;
  using Words = Lanes<Word, width>;
  using Doubles = Lanes<double, width / parts>;
  static constexpr T infinity = T(__builtin_inf());
  struct Some {
    Values least = Values{} + infinity, largest = Values{} - infinity;
    Doubles sum[parts] = {}, squares[parts] = {};
    Words zero = {}, negative = {};
  };
  Some all[lanes / width];
  Words nan[lanes / width] = {}, positive_inf[lanes / width] = {}, negative_inf[lanes / width] = {};

  // `stored`: as they lie in memory, where the next ones are to be fetched.
  template <class Stored>
  void add(const T* from, int64_t count, const Stored* stored) {
    for (int i = 0; i < lanes / width; i++)
      if (!add_finite(all[i], from + i * width, count, stored)) add_any(i, from + i * width, count);
  }

  // One of each lane.
  void add_any(const T* from) {
    for (int i = 0; i < lanes / width; i++) add_any(i, from + i * width, 1);
  }

  // Nothing and false where one is not finite, or too large to be added.
  template <class Stored>
  static bool add_finite(Some& to, const T* from, int64_t count, const Stored* stored) {
    Some sums = to;
    for (int64_t i = 0; i < count; i += lanes) {
      Values v;
      __builtin_prefetch(reinterpret_cast<const char*>(stored + i) + ahead);
      __builtin_memcpy(&v, from + i, sizeof v);
      add_values(sums, v, v, v, from + i);
    }
    Doubles none = {};
    for (const Doubles& sum : sums.sum) none += sum - sum;
    double all = 0;
    for (int l = 0; l < width / parts; l++) all += none[l];
    if (!(all == 0)) return false;
    to = sums;
    return true;
  }

  void add_any(int at, const T* from, int64_t count) {
    Some sums = all[at];
    for (int64_t i = 0; i < count; i += lanes) {
      Values v;
      Words bits;
      __builtin_memcpy(&v, from + i, sizeof v);
      __builtin_memcpy(&bits, from + i, sizeof bits);
      const Words size = bits & Bits<T>::magnitude, is_finite = size < Bits<T>::infinite;
      const Values kept = is_finite ? v : Values{};
      add_values(sums, is_finite ? v : Values{} + infinity, is_finite ? v : Values{} - infinity, kept, reinterpret_cast<const T*>(&kept));
      const Words below = bits == (Bits<T>::infinite | ~Bits<T>::magnitude);
      sums.zero += is_finite == 0;
      sums.negative -= below;
      nan[at] -= size > Bits<T>::infinite;
      positive_inf[at] -= bits == Bits<T>::infinite;
      negative_inf[at] -= below;
    }
    all[at] = sums;
  }

  // `in_memory`: what is kept.
  static void add_values(Some& to, Values up, Values down, Values kept, const T* in_memory) {
    to.least = up < to.least ? up : to.least;
    to.largest = down > to.largest ? down : to.largest;
    for (int i = 0; i < parts; i++) {
      Doubles wide;
      for (int l = 0; l < width / parts; l++) wide[l] = double(in_memory[i * (width / parts) + l]);
      to.sum[i] += wide;
      to.squares[i] = with_squares<T>(to.squares[i], wide);
    }
    to.zero = kept == T(0) ? to.zero + 1 : to.zero;
    to.negative = kept < T(0) ? to.negative + 1 : to.negative;
  }

  void into(Statistics& found) const {
    for (int l = 0; l < lanes; l++) {
      const int at = l / width, i = l % width, part = i / (width / parts), in_part = i % (width / parts);
      const Some& sums = all[at];
      found.least = double(sums.least[i]) < found.least ? double(sums.least[i]) : found.least;
      found.largest = double(sums.largest[i]) > found.largest ? double(sums.largest[i]) : found.largest;
      found.sum += sums.sum[part][in_part];
      found.squares += sums.squares[part][in_part];
      found.nan += nan[at][i];
      found.positive_inf += positive_inf[at][i];
      found.negative_inf += negative_inf[at][i];
      found.zero += sums.zero[i];
      found.negative += sums.negative[i];
    }
  }
};

template <class T, class Wide>
void widen_all(const T* from, int64_t count, Wide* to) {
  for (int64_t i = 0; i < count; i++) to[i] = widen(from[i]);
}

// As to_float does, lane by lane: compilers make no vectors of that.
void widen_all(const Half* from, int64_t count, float* to) {
  constexpr int width = Vec::width;
  using Words = Lanes<int32_t, width>;
  int64_t i = 0;
  for (; i + width <= count; i += width) {
    Lanes<uint16_t, width> halves;
    __builtin_memcpy(&halves, from + i, sizeof halves);
    const Words bits = __builtin_convertvector(halves, Words), sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    const auto tiny = __builtin_convertvector(rest, Lanes<float, width>) * 0x1p-24f;
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
  constexpr int lanes = Sums<Wide>::lanes;
  Statistics all;
  all.count = count;
  Sums<Wide> sums;
  for (int64_t start = 0; start < count; start += block, from += block) {
    const int64_t size = smaller(block, count - start), whole = size / lanes * lanes;
    if constexpr (sizeof(T) == sizeof(Wide)) {
      sums.add(from, whole, from);
    } else {
      Wide wide[block];
      widen_all(from, whole, wide);
      sums.add(wide, whole, from);
    }
    if (whole == size) continue;
    Wide last[lanes];
    widen_all(from + whole, size - whole, last);
    for (int64_t i = size - whole; i < lanes; i++) last[i] = Wide(__builtin_nan("")), all.nan--;
    sums.add_any(last);
  }
  sums.into(all);
  return all;
}

}  // namespace
}  // namespace statistics_only

using namespace statistics_only;

void statistics(DType dtype, const void* data, int64_t count, Statistics* pieces, const Parallel& parallel) {
  with_type(dtype, [&](auto type) {
    const auto* values = static_cast<const decltype(type)*>(data);
    parallel_for(parallel, divide_up(count, statistics_piece), [&](int64_t i, int) {
      const int64_t start = i * statistics_piece;
      pieces[i] = of(values + start, smaller(statistics_piece, count - start));
    });
  });
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
