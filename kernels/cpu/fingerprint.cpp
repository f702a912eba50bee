// 128 bits that stand for any number of bytes: whether a weight is still the one that was prepared, whether a tensor is that of another
// run. The same on every instruction set, for any number of threads and for any strides. Made for accidents, not for adversaries.
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

class Chunk {
 public:
  // Whole stripes, until the last call.
  void add(const char* from, int64_t bytes) {
    Words keys = key_, sums = sums_;
    for (bytes_ += bytes; bytes >= stripe; bytes -= stripe, from += stripe) {
      __builtin_prefetch(from + ahead);
      add_stripe(from, keys, sums);
    }
    key_ = keys, sums_ = sums;
    for (int64_t i = 0; i < bytes; i++) last_[i] = from[i];
  }

  Fingerprint found(int64_t index) {
    add_stripe(last_, key_, sums_);
    uint64_t sum[lanes];
    sums_.store(sum);
    Fingerprint found = {mix(uint64_t(index) * step + uint64_t(bytes_)), mix(uint64_t(index) + step)};
    for (const uint64_t word : sum) found = {mix(found.low ^ word), mix(found.high + word)};
    return found;
  }

 private:
  Words key_ = Words::load(first_key), sums_ = Words::all(0);
  int64_t bytes_ = 0;
  char last_[stripe] = {};
};

// `add` gives a chunk its bytes from `start` on.
template <class Add>
Fingerprint in_chunks(int64_t bytes, const Parallel& parallel, const Add& add) {
  Fingerprint all = {mix(uint64_t(bytes)), 0};
  parallel_for(parallel, divide_up(bytes, chunk), [&](int64_t index, int) {
    const int64_t start = index * chunk;
    Chunk one;
    add(one, start, smaller(chunk, bytes - start));
    const Fingerprint found = one.found(index);
    __atomic_fetch_add(&all.low, found.low, __ATOMIC_RELAXED);  // sums of chunks that know their index: in any order
    __atomic_fetch_add(&all.high, found.high, __ATOMIC_RELAXED);
  });
  return all;
}

template <class T>
constexpr int side = 32 / sizeof(T);

// A square of values: what lies behind each other does so at a distance. Rows are zipped until each value has its place.
template <class T>
void turn(T* to, int64_t to_stride, const T* from, int64_t from_stride) {
  constexpr int n = side<T>;
  using Row __attribute__((vector_size(32))) = T;
  Row rows[n], zipped[n], low;
  for (int i = 0; i < n; i++) low[i] = T(i / 2 + i % 2 * n);
  for (int i = 0; i < n; i++) __builtin_memcpy(rows + i, from + i * from_stride, sizeof(Row));
  for (int width = 1; width < n; width *= 2) {
    for (int i = 0; i < n; i++) zipped[i] = __builtin_shuffle(rows[i / 2], rows[i / 2 + n / 2], i % 2 ? low + T(n / 2) : low);
    for (int i = 0; i < n; i++) rows[i] = zipped[i];
  }
  for (int i = 0; i < n; i++) __builtin_memcpy(to + i * to_stride, rows + i, sizeof(Row));
}

// A part of a tensor: rows of `inner.size` values.
template <class T>
struct Piece {
  const T* from;
  int64_t rows, row_stride;
  Dimension inner;
};

template <class T>
void copy(T* to, int64_t to_stride, const Piece<T>& piece) {
  const auto& [from, rows, row_stride, inner] = piece;
  const int64_t columns = inner.size;
  int64_t top = 0;
  if (row_stride == 1 && inner.stride != 1)
    while (top + side<T> <= rows) {
      const int64_t end = top + (top + 2 * side<T> <= rows ? 2 : 1) * side<T>;  // squares beside each other are read from the same lines
      int64_t c = 0;
      for (; c + side<T> <= columns; c += side<T>)
        for (int64_t r = top; r < end; r += side<T>) turn(to + r * to_stride + c, to_stride, from + r + c * inner.stride, inner.stride);
      for (; c < columns; c++)
        for (int64_t r = top; r < end; r++) to[r * to_stride + c] = from[r + c * inner.stride];
      top = end;
    }
  for (; top < rows; top++) {
    T* row = to + top * to_stride;
    const T* source = from + top * row_stride;
    if (inner.stride == 1)
      __builtin_memcpy(row, source, columns * sizeof(T));
    else if (inner.stride == 0)
      for (int64_t c = 0; c < columns; c++) row[c] = *source;
    else
      for (int64_t c = 0; c < columns; c++) row[c] = source[c * inner.stride];
  }
}

// `count` elements from that one on, in pieces of whole rows, or of a part of one.
template <class T, class Use>
void for_pieces(const T* data, const Dimension* dimensions, int last, int64_t begin, int64_t count, const Use& use) {
  for (int64_t done = 0; done < count;) {
    int64_t offset = 0, left = begin + done, column = 0, row = 0;
    for (int d = last; d >= 0; left /= dimensions[d--].size) {
      const int64_t at = left % dimensions[d].size;
      offset += at * dimensions[d].stride;
      if (d == last) column = at;
      if (d == last - 1) row = at;
    }
    const Dimension inner = dimensions[last];
    int64_t rows = 1, columns = smaller(inner.size - column, count - done);
    if (columns == inner.size && last > 0) rows = smaller(dimensions[last - 1].size - row, (count - done) / columns);
    use(Piece<T>{data + offset, rows, last > 0 ? dimensions[last - 1].stride : 0, {columns, inner.stride}});
    done += rows * columns;
  }
}

constexpr int64_t block = 64 << 10;  // in the cache
constexpr int64_t far = 1 << 10, room_bytes = block + block / far * stripe;

template <class T>
Fingerprint strided(const void* data, const Dimension* dimensions, int count, const Parallel& parallel) {
  constexpr int64_t size = sizeof(T);
  const Dimension inner = dimensions[count - 1];
  const int64_t row = inner.size * size;
  const bool by_rows = row > 0 && row % stripe == 0 && row <= block;  // then each is added by itself
  // Long rows lie a stripe apart: at a distance of a power of 2 they would push each other out of the cache.
  const int64_t room_stride = inner.size + (row >= far ? stripe / size : 0);
  const int64_t most = by_rows ? block / row : 0, many = most < side<T> ? most : most / side<T> * side<T>;
  int64_t bytes = size;
  for (int d = 0; d < count; d++) bytes *= dimensions[d].size;
  return in_chunks(bytes, parallel, [&](Chunk& one, int64_t start, int64_t length) {
    alignas(stripe) T room[room_bytes / sizeof(T)];
    for (int64_t at = start, end = start + length, part; at < end; at += part) {
      part = smaller(block, end - at);
      const bool has_rows = by_rows && at % row == 0 && end - at >= row;
      if (has_rows) part = smaller(many, (end - at) / row) * row;
      else if (by_rows) part = smaller(row - at % row, end - at);
      T* to = room;
      for_pieces(static_cast<const T*>(data), dimensions, count - 1, at / size, part / size, [&](const Piece<T>& piece) {
        if (!has_rows) {
          copy(to, piece.inner.size, piece);
          to += piece.rows * piece.inner.size;
          return;
        }
        const T* from = piece.from;
        int64_t from_stride = piece.row_stride;
        if (inner.stride != 1) {
          from = room, from_stride = room_stride;
          copy(room, from_stride, piece);
        }
        for (int64_t r = 0; r < piece.rows; r++) one.add(reinterpret_cast<const char*>(from + r * from_stride), row);
      });
      if (!has_rows) one.add(reinterpret_cast<const char*>(room), part);
    }
  });
}

}  // namespace

Fingerprint fingerprint(const void* data, int64_t bytes, const Parallel& parallel) {
  return in_chunks(bytes, parallel, [&](Chunk& one, int64_t start, int64_t size) { one.add(static_cast<const char*>(data) + start, size); });
}

Fingerprint strided_fingerprint(const void* data, int bytes_of_element, const Dimension* dimensions, int count, const Parallel& parallel) {
  switch (bytes_of_element) {
    case 1: return strided<uint8_t>(data, dimensions, count, parallel);
    case 2: return strided<uint16_t>(data, dimensions, count, parallel);
    case 4: return strided<uint32_t>(data, dimensions, count, parallel);
    default: return strided<uint64_t>(data, dimensions, count, parallel);
  }
}

}  // namespace msctx::MSCTX_ISA
