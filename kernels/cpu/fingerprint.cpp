// 128 bits that stand for any number of bytes: whether a weight is still the one that was prepared, whether a tensor is that of another
// run. The same on every instruction set, for any number of threads and for any strides. Made for accidents, not for adversaries.
//
// Each word is multiplied with itself, half by half, after a key that no other place has was mixed in; and it is added to its
// neighbour's sum, so that no zero factor hides it (after XXH3 by Y. Collet). A sum of 64-bit words reads as fast as memory gives.
#include "msctx/table.h"
#include "words.h"

namespace msctx::MSCTX_ISA {
namespace fingerprint_only {
namespace {

constexpr int words = 8;
constexpr int64_t stripe = words * sizeof(uint64_t);
constexpr int64_t chunk = 512 << 10;  // a task; less is not worth a second thread
constexpr int64_t ahead = 4096;  // bytes to fetch before they are needed
constexpr uint64_t step = 0x9e3779b97f4a7c15;  // odd: the keys of a word are all different
// The first binary digits of pi.
constexpr uint64_t first_key[words] = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89,
                                       0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917};

// Each bit of the result depends on each of v, and different ones stay different (A. Appleby's MurmurHash3).
uint64_t mix(uint64_t v) {
  v = (v ^ v >> 33) * 0xff51afd7ed558ccd;
  v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53;
  return v ^ v >> 33;
}

void add_stripe(const char* from, Words& key, Words& sums) {
  const Words words = Words::load(from);
  sums = sums + (halves_product(words ^ key) + swap_pairs(words));
  key = key + Words::all(step);
}

// Of the bytes of one chunk, at two places at once: sums may be added in any order, and memory gives more to two.
Fingerprint of_chunk(const char* from, int64_t bytes, int64_t index) {
  const int64_t half = bytes / stripe / 2, distance = half * stripe;
  Words keys = Words::load(first_key), sums = Words::all(0), far_keys = keys + Words::all(uint64_t(half) * step), far_sums = sums;
  for (const char* end = from + distance; from < end; from += stripe) {
    __builtin_prefetch(from + ahead);
    __builtin_prefetch(from + distance + ahead);
    add_stripe(from, keys, sums);
    add_stripe(from + distance, far_keys, far_sums);
  }
  sums = sums + far_sums;
  from += distance;
  int64_t left = bytes - 2 * distance;
  if (left >= stripe) {
    add_stripe(from, far_keys, sums);
    from += stripe, left -= stripe;
  }
  char last[stripe] = {};
  for (int64_t i = 0; i < left; i++) last[i] = from[i];
  add_stripe(last, far_keys, sums);
  uint64_t sum[words];
  sums.store(sum);
  Fingerprint found = {mix(uint64_t(index) * step + uint64_t(bytes)), mix(uint64_t(index) + step)};
  for (const uint64_t word : sum) found = {mix(found.low ^ word), mix(found.high + word)};
  return found;
}

}  // namespace
}  // namespace fingerprint_only

using namespace fingerprint_only;

Fingerprint fingerprint(const void* data, int64_t bytes, const Parallel& parallel) {
  Fingerprint all = {mix(uint64_t(bytes)), 0};
  parallel_for(parallel, divide_up(bytes, chunk), [&](int64_t index, int) {
    const int64_t start = index * chunk;
    const Fingerprint found = of_chunk(static_cast<const char*>(data) + start, smaller(chunk, bytes - start), index);
    __atomic_fetch_add(&all.low, found.low, __ATOMIC_RELAXED);  // sums of chunks that know their index: in any order
    __atomic_fetch_add(&all.high, found.high, __ATOMIC_RELAXED);
  });
  return all;
}

}  // namespace msctx::MSCTX_ISA
