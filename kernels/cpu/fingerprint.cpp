// 128 bits that stand for any number of bytes: whether a weight is still the one that was prepared. The same on every instruction
// set and for any number of threads. Made for accidents, not for adversaries.
//
// Each word is multiplied with itself, half by half, after a key that no other place has was mixed in; and it is added to its
// neighbour's sum, so that no zero factor hides it (after XXH3 by Y. Collet). A sum of 64-bit words reads as fast as memory gives.
#include "msctx/table.h"
#include "words.h"

namespace msctx::MSCTX_ISA {
namespace {

constexpr int lanes = 8;
constexpr int64_t stripe = lanes * sizeof(uint64_t);
constexpr int64_t chunk = 512 << 10;  // a task; less is not worth a second thread
constexpr int64_t ahead = 512;        // bytes to fetch before they are needed
constexpr uint64_t step = 0x9e3779b97f4a7c15;  // odd: the keys of a lane are all different
// The first binary digits of pi.
constexpr uint64_t first_key[lanes] = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89,
                                       0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917};

// Each bit of the result depends on each of v, and different ones stay different (A. Appleby's MurmurHash3).
uint64_t mix(uint64_t v) {
  v = (v ^ v >> 33) * 0xff51afd7ed558ccd;
  v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53;
  return v ^ v >> 33;
}

void add_stripe(const void* from, Words& key, Words& sums) {
  const Words words = Words::load(from);
  sums = sums + (halves_product(words ^ key) + swap_pairs(words));
  key = key + Words::all(step);
}

Fingerprint of_chunk(const char* from, int64_t bytes, int64_t index) {
  Words key = Words::load(first_key), sums = Words::all(0);
  int64_t left = bytes;
  for (; left >= stripe; left -= stripe, from += stripe) {
    __builtin_prefetch(from + ahead);
    add_stripe(from, key, sums);
  }
  char last[stripe] = {};
  for (int64_t i = 0; i < left; i++) last[i] = from[i];
  add_stripe(last, key, sums);
  uint64_t sum[lanes];
  sums.store(sum);
  Fingerprint found = {mix(uint64_t(index) * step + uint64_t(bytes)), mix(uint64_t(index) + step)};
  for (const uint64_t word : sum) found = {mix(found.low ^ word), mix(found.high + word)};
  return found;
}

}  // namespace

Fingerprint fingerprint(const void* data, int64_t bytes, const Parallel& parallel) {
  Fingerprint all = {mix(uint64_t(bytes)), 0};
  parallel_for(parallel, divide_up(bytes, chunk), [&](int64_t index, int) {
    const int64_t start = index * chunk;
    const Fingerprint one = of_chunk(static_cast<const char*>(data) + start, smaller(chunk, bytes - start), index);
    __atomic_fetch_add(&all.low, one.low, __ATOMIC_RELAXED);  // sums of chunks that know their index: in any order
    __atomic_fetch_add(&all.high, one.high, __ATOMIC_RELAXED);
  });
  return all;
}

}  // namespace msctx::MSCTX_ISA
