// Eight 64-bit words, for any processor.
#pragma once

#include <cstdint>
#include <cstring>

namespace msctx::generic {

// Pairs, as the vectors of most processors hold them.
typedef uint64_t Pair __attribute__((vector_size(16)));

struct Words {
  Pair v[4];
  static Words load(const void* p) {
    Words words;
    std::memcpy(words.v, p, sizeof words.v);
    return words;
  }
  static Words all(uint64_t x) {
    const Pair pair{x, x};
    return {{pair, pair, pair, pair}};
  }
  void store(void* p) const { std::memcpy(p, v, sizeof v); }
};

static inline Words operator^(Words a, Words b) { return {{a.v[0] ^ b.v[0], a.v[1] ^ b.v[1], a.v[2] ^ b.v[2], a.v[3] ^ b.v[3]}}; }
static inline Words operator+(Words a, Words b) { return {{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}}; }
static inline Pair halves_product(Pair a) { return (a & 0xffffffff) * (a >> 32); }
// The product of the two halves of each word.
static inline Words halves_product(Words a) {
  return {{halves_product(a.v[0]), halves_product(a.v[1]), halves_product(a.v[2]), halves_product(a.v[3])}};
}
static inline Pair swap(Pair a) { return Pair{a[1], a[0]}; }
// Words 2i and 2i + 1 change places.
static inline Words swap_pairs(Words a) { return {{swap(a.v[0]), swap(a.v[1]), swap(a.v[2]), swap(a.v[3])}}; }

}  // namespace msctx::generic
