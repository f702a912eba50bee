// Fingerprints of tensors, however they lie in memory.
#include "msctx/fingerprint.h"

namespace msctx::MSCTX_ISA {
namespace fingerprint_only {
namespace {

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
        for (int64_t r = 0; r < piece.rows; r++) one.add_row(reinterpret_cast<const char*>(from + r * from_stride), row);
      });
      if (!has_rows) one.add_row(reinterpret_cast<const char*>(room), part);
    }
  });
}

}  // namespace
}  // namespace fingerprint_only

using namespace fingerprint_only;

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
