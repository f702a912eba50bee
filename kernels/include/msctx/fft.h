// Fourier transforms of real planes, sixteen columns at a time. Everything here acts on the lanes of a vector alike and
// independently, so that the bits are the same for every instruction set.
//
// 1-D: a row holds one value of each of 16 neighbouring columns, [2][16] floats: real parts, then imaginary parts. A
// transform runs over rows (Stockham's order, radices 8, 4, 2, 3, 5), out of one buffer into another and back.
//
// 2-D: a real plane of height x width has height * width / 2 complex frequencies. Down the columns it is a negacyclic
// transform: the plane's polynomial is evaluated where t^height = -1. The halves with t^(height/2) = i and -i are conjugates;
// for the first one the lower rows, times i, are added to the upper ones (that is, become their imaginary parts), and after a
// twist it is an ordinary transform of height / 2. This uses the symmetry of real data without a special case for any
// frequency. Products of such spectra are convolutions whose wrap-around changes the sign along the height; who discards what
// wraps around, or has zeros there, need not care.
#pragma once

#include <cmath>
#include <cstring>

#include "msctx/conv.h"
#include "vec.h"

namespace msctx::MSCTX_ISA {

constexpr int lanes = 16;  // whatever Vec::width is: the layout is part of the bits
constexpr int row_floats = 2 * lanes;

struct Fft {
  int64_t length;
  int passes;
  int radix[64];
  const float* twiddles;  // of each pass: [length of its transforms / radix][radix - 1][2]
};

static inline int64_t round_up(int64_t n, int64_t to) { return divide_up(n, to) * to; }

// The smallest 2^a 3^b 5^c that is not below n.
static inline int64_t good_size(int64_t n) {
  for (n = larger(n, 1);; n++) {
    int64_t rest = n;
    while (rest % 2 == 0) rest /= 2;
    while (rest % 3 == 0) rest /= 3;
    while (rest % 5 == 0) rest /= 5;
    if (rest == 1) return n;
  }
}

static inline int64_t twiddle_floats(int64_t length) { return 2 * length; }  // enough: the passes' tables are ever shorter

static inline Fft make_fft(int64_t length) {
  Fft fft{length, 0, {}, nullptr};
  int64_t rest = length;
  for (; rest % 3 == 0; rest /= 3) fft.radix[fft.passes++] = 3;
  for (; rest % 5 == 0; rest /= 5) fft.radix[fft.passes++] = 5;
  while (rest > 1) {  // a power of two: eights, and fours before a two
    const int radix = rest == 2 ? 2 : rest == 4 || rest == 16 ? 4 : 8;
    fft.radix[fft.passes++] = radix;
    rest /= radix;
  }
  return fft;
}

// e^(2 pi i turns) as two floats, times scale; rounded once from double.
static inline void put_root(float* to, double turns, double scale) {
  const double angle = 6.283185307179586476925 * turns;
  to[0] = float(std::cos(angle) * scale);
  to[1] = float(std::sin(angle) * scale);
}

static inline void fill_twiddles(Fft& fft, float* table) {
  fft.twiddles = table;
  int64_t n = fft.length;
  for (int pass = 0; pass < fft.passes; pass++) {
    const int radix = fft.radix[pass];
    for (int64_t i = 0; i < n / radix; i++)
      for (int64_t j = 1; j < radix; j++, table += 2) put_root(table, double(i * j) / double(n), 1.0);
    n /= radix;
  }
}

struct Complex {
  Vec re, im;
};
static inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
static inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
static inline Complex operator*(Complex a, Complex b) { return {fnma(a.im, b.im, a.re * b.re), fma(a.im, b.re, a.re * b.im)}; }
static inline Complex plus_i(Complex a, Complex b) { return {a.re - b.im, a.im + b.re}; }   // a + i b
static inline Complex minus_i(Complex a, Complex b) { return {a.re + b.im, a.im - b.re}; }  // a - i b
static inline Complex scaled(Complex a, Vec by) { return {a.re * by, a.im * by}; }
static inline Complex fma(Complex a, Vec b, Complex c) { return {fma(a.re, b, c.re), fma(a.im, b, c.im)}; }
static inline Complex fnma(Complex a, Vec b, Complex c) { return {fnma(a.re, b, c.re), fnma(a.im, b, c.im)}; }

static inline void butterfly4(Complex& a, Complex& b, Complex& c, Complex& d) {
  const Complex s = a + c, t = a - c, u = b + d, v = b - d;
  a = s + u;
  b = plus_i(t, v);
  c = s - u;
  d = minus_i(t, v);
}

// The transform of `radix` values: v[j] = sum of v[l] e^(2 pi i j l / radix).
template <int radix>
static inline void butterfly(Complex* v) {
  if constexpr (radix == 2) {
    const Complex s = v[0] + v[1], t = v[0] - v[1];
    v[0] = s;
    v[1] = t;
  } else if constexpr (radix == 3) {
    const Complex s = v[1] + v[2], t = scaled(v[1] - v[2], Vec::all(0.866025403784438647f));
    const Complex middle = fnma(s, Vec::all(0.5f), v[0]);
    v[0] = v[0] + s;
    v[1] = plus_i(middle, t);
    v[2] = minus_i(middle, t);
  } else if constexpr (radix == 4) {
    butterfly4(v[0], v[1], v[2], v[3]);
  } else if constexpr (radix == 5) {
    const Vec c1 = Vec::all(0.309016994374947424f), c2 = Vec::all(0.809016994374947424f);  // cos 72, -cos 144 degrees
    const Vec s1 = Vec::all(0.951056516295153572f), s2 = Vec::all(0.587785252292473129f);  // sin 72, sin 144 degrees
    const Complex a = v[1] + v[4], b = v[2] + v[3], c = v[1] - v[4], d = v[2] - v[3];
    const Complex p = fnma(b, c2, fma(a, c1, v[0])), q = fma(b, c1, fnma(a, c2, v[0]));
    const Complex r = fma(d, s2, scaled(c, s1)), s = fnma(d, s1, scaled(c, s2));
    v[0] = v[0] + (a + b);
    v[1] = plus_i(p, r);
    v[2] = plus_i(q, s);
    v[3] = minus_i(q, s);
    v[4] = minus_i(p, r);
  } else {
    static_assert(radix == 8);
    const Vec half = Vec::all(0.707106781186547524f);
    Complex e0 = v[0], e1 = v[2], e2 = v[4], e3 = v[6], o0 = v[1], o1 = v[3], o2 = v[5], o3 = v[7];
    butterfly4(e0, e1, e2, e3);
    butterfly4(o0, o1, o2, o3);
    o1 = scaled(plus_i(o1, o1), half);   // times e^(i pi / 4)
    o3 = scaled(plus_i(o3, o3), half);  // times e^(3 i pi / 4) / i
    v[0] = e0 + o0;
    v[1] = e1 + o1;
    v[2] = plus_i(e2, o2);
    v[3] = plus_i(e3, o3);
    v[4] = e0 - o0;
    v[5] = e1 - o1;
    v[6] = minus_i(e2, o2);
    v[7] = minus_i(e3, o3);
  }
}

// One pass: `groups` x `stride` butterflies. re and im are where the two parts lie in a row.
template <int radix>
static inline void fft_pass(const float* from, float* to, int64_t groups, int64_t stride, const float* twiddles, int re,
                            int im) {
  for (int64_t i = 0; i < groups; i++, twiddles += 2 * (radix - 1))
    for (int64_t q = 0; q < stride; q++) {
      const float* in = from + (i * stride + q) * row_floats;
      float* out = to + (i * radix * stride + q) * row_floats;
      for (int lane = 0; lane < lanes; lane += Vec::width) {
        Complex v[radix];
#pragma GCC unroll 8
        for (int j = 0; j < radix; j++) {
          const float* row = in + j * groups * stride * row_floats + lane;
          v[j] = {Vec::load(row + re), Vec::load(row + im)};
        }
        butterfly<radix>(v);
        if (i > 0)  // the first group's twiddles are 1
#pragma GCC unroll 8
          for (int j = 1; j < radix; j++) v[j] = v[j] * Complex{Vec::all(twiddles[2 * j - 2]), Vec::all(twiddles[2 * j - 1])};
#pragma GCC unroll 8
        for (int j = 0; j < radix; j++) {
          float* row = out + j * stride * row_floats + lane;
          v[j].re.store(row + re);
          v[j].im.store(row + im);
        }
      }
    }
}

// Transforms the rows in a, b being spare; returns the one of the two that has the result: a if fft.passes is even.
// The exponent's sign is plus; the inverse one's (which is not scaled) is minus, and comes from exchanging re and im.
static inline float* transform(const Fft& fft, float* a, float* b, bool inverse) {
  const int re = inverse ? lanes : 0, im = lanes - re;
  const float* twiddles = fft.twiddles;
  int64_t n = fft.length, stride = 1;
  for (int pass = 0; pass < fft.passes; pass++) {
    const int radix = fft.radix[pass];
    n /= radix;
    switch (radix) {
      case 2: fft_pass<2>(a, b, n, stride, twiddles, re, im); break;
      case 3: fft_pass<3>(a, b, n, stride, twiddles, re, im); break;
      case 4: fft_pass<4>(a, b, n, stride, twiddles, re, im); break;
      case 5: fft_pass<5>(a, b, n, stride, twiddles, re, im); break;
      default: fft_pass<8>(a, b, n, stride, twiddles, re, im); break;
    }
    twiddles += 2 * n * (radix - 1);
    stride *= radix;
    float* const result = b;
    b = a;
    a = result;
  }
  return a;
}

// Where the values along one axis lie: the i-th of count has the index first + i in the transform, and element + i * stride
// in the tensor. All other indices of the transform are zeros (read), or are dropped (written).
struct Lattice {
  int64_t first, count, element, stride;
  int64_t end() const { return first + count; }
};

// What has an index in [begin, end).
static inline Lattice between(const Lattice& l, int64_t begin, int64_t end) {
  const int64_t from = larger(l.first, begin), to = smaller(l.end(), end);
  return {from, larger(0, to - from), l.element + (from - l.first) * l.stride, l.stride};
}
static inline Lattice shifted(const Lattice& l, int64_t by) { return {l.first + by, l.count, l.element, l.stride}; }

// A spectrum of a plane: blocks of 16 frequencies, [2][16] floats each, `stride` floats apart. The last one may be filled up.
struct Spectrum {
  float* first;
  int64_t stride;
};

struct Fft2d {
  Fft down, across;  // of height / 2, of width
  const float *twist, *untwist;
  int64_t half() const { return down.length; }
  int64_t width() const { return across.length; }
  int64_t padded_half() const { return round_up(half(), lanes); }
  int64_t padded_width() const { return round_up(width(), lanes); }
  int64_t blocks() const { return divide_up(half() * width(), lanes); }  // of a spectrum
  int64_t table_floats() const { return twiddle_floats(half()) + twiddle_floats(width()) + 4 * half(); }
  int64_t buffer_floats() const { return larger(padded_half(), padded_width()) * row_floats; }
  int64_t scratch_floats() const { return padded_half() / lanes * padded_width() * row_floats + 2 * buffer_floats(); }
};

// height is even. The tables are missing still.
static inline Fft2d make_fft2d(int64_t height, int64_t width) {
  return {make_fft(height / 2), make_fft(width), nullptr, nullptr};
}

static inline void fill_tables(Fft2d& f, float* table) {
  fill_twiddles(f.down, table);
  fill_twiddles(f.across, table += twiddle_floats(f.half()));
  float* twist = table += twiddle_floats(f.width());
  float* untwist = twist + 2 * f.half();
  for (int64_t i = 0; i < f.half(); i++) {
    put_root(twist + 2 * i, double(i) / double(4 * f.half()), 1.0);
    put_root(untwist + 2 * i, -double(i) / double(4 * f.half()), 1.0 / double(f.half() * f.width()));
  }
  f.twist = twist;
  f.untwist = untwist;
}

static inline void multiply_rows(float* rows, int64_t count, const float* by) {
  for (int64_t i = 0; i < count; i++, rows += row_floats, by += 2)
    for (int lane = 0; lane < lanes; lane += Vec::width) {
      const Complex root = {Vec::all(by[0]), Vec::all(by[1])};
      const Complex v = Complex{Vec::load(rows + lane), Vec::load(rows + lanes + lane)} * root;
      v.re.store(rows + lane);
      v.im.store(rows + lanes + lane);
    }
}

// Exchanges lanes and rows of 16 rows, real and imaginary parts each.
static inline void transpose_rows(const float* from, float* to) {
  for (int part = 0; part < row_floats; part += lanes)
    for (int i = 0; i < lanes; i += Vec::width)
      for (int j = 0; j < lanes; j += Vec::width) {
        Vec block[Vec::width];
        for (int l = 0; l < Vec::width; l++) block[l] = Vec::load(from + (i + l) * row_floats + part + j);
        transpose(block);
        for (int l = 0; l < Vec::width; l++) block[l].store(to + (j + l) * row_floats + part + i);
      }
}

static inline void zero_rows(float* rows, int64_t begin, int64_t end) {
  std::memset(rows + begin * row_floats, 0, size_t(end - begin) * row_floats * sizeof(float));
}

static inline void copy_floats(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; i += Vec::width) Vec::load(from + i, int(count - i)).store(to + i, int(count - i));
}

static inline void copy_strided(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t count) {
  if (to_stride == 1 && from_stride == 1)
    copy_floats(to, from, count);
  else
    for (int64_t i = 0; i < count; i++) to[i * to_stride] = from[i * from_stride];
}

// Calls body(place in the spectrum, place in the rows, floats) for all that belongs together in the rows of the block-th 16
// frequencies down. Whole rows are blocks; where there are fewer than 16, rows are laid one behind the other, so that only
// the last block is filled up.
template <class Body>
static inline void for_spectrum(const Fft2d& f, int64_t block, Spectrum s, float* rows, const Body& body) {
  const int64_t count = smaller(lanes, f.half() - block * lanes), first = block * lanes * f.width();
  for (int64_t g = 0; g < f.width(); g++, rows += row_floats) {
    float* const place = s.first + (first + g * count) / lanes * s.stride;
    const int64_t lane = (first + g * count) % lanes, fits = smaller(count, lanes - lane);
    if (count == lanes) {
      body(place, rows, int64_t(row_floats));
      continue;
    }
    body(place + lane, rows, fits);
    body(place + lane + lanes, rows + lanes, fits);
    if (fits == count) continue;
    body(place + s.stride, rows + fits, count - fits);
    body(place + s.stride + lanes, rows + fits + lanes, count - fits);
  }
}

// Where 16 values of a row of the plane are: the upper half's are real parts, the lower half's the imaginary parts.
static inline float* folded(const Fft2d& f, float* rows, int64_t row) {
  return row < f.half() ? rows + row * row_floats : rows + (row - f.half()) * row_floats + lanes;
}

// The spectrum of the values of a plane (a matrix with rows of `pitch` floats) that lie on the two lattices.
static inline void forward_2d(const Fft2d& f, const float* plane, int64_t pitch, const Lattice& rows, const Lattice& columns,
                              float* scratch, Spectrum spectrum) {
  float *a = scratch, *b = a + f.buffer_floats(), *turned = b + f.buffer_floats();  // turned: [half / 16][width][2][16]
  const int64_t turned_floats = f.padded_width() * row_floats;
  for (int64_t left = 0; left < f.width(); left += lanes) {
    const Lattice here = shifted(between(columns, left, left + lanes), -left);
    if (here.count == 0) {
      for (int64_t h = 0; h < f.padded_half(); h += lanes) zero_rows(turned + h / lanes * turned_floats, left, left + lanes);
      continue;
    }
    zero_rows(a, 0, f.padded_half());
    zero_rows(b, f.half(), f.padded_half());
    for (int64_t i = 0; i < rows.count; i++) {
      float* to = folded(f, a, rows.first + i) + here.first;
      const float* from = plane + (rows.element + i * rows.stride) * pitch + here.element;
      copy_strided(to, 1, from, here.stride, here.count);
    }
    multiply_rows(a, f.half(), f.twist);
    const float* result = transform(f.down, a, b, false);
    for (int64_t h = 0; h < f.padded_half(); h += lanes)
      transpose_rows(result + h * row_floats, turned + h / lanes * turned_floats + left * row_floats);
  }
  if (f.half() * f.width() % lanes != 0) zero_rows(spectrum.first + (f.blocks() - 1) * spectrum.stride, 0, 1);
  for (int64_t block = 0; block < f.padded_half() / lanes; block++)
    for_spectrum(f, block, spectrum, transform(f.across, turned + block * turned_floats, b, false), copy_floats);
}

// Writes the values on the lattices of the plane that has this spectrum.
static inline void inverse_2d(const Fft2d& f, Spectrum spectrum, float* scratch, float* plane, int64_t pitch,
                              const Lattice& rows, const Lattice& columns) {
  float *a = scratch, *b = a + f.buffer_floats(), *turned = b + f.buffer_floats();
  const int64_t turned_floats = f.padded_width() * row_floats;
  for (int64_t block = 0; block < f.padded_half() / lanes; block++) {
    float *to = turned + block * turned_floats, *from = f.across.passes % 2 == 0 ? to : b;
    zero_rows(from, 0, f.width());
    zero_rows(to, f.width(), f.padded_width());
    for_spectrum(f, block, spectrum, from, [](float* place, float* row, int64_t count) { copy_floats(row, place, count); });
    transform(f.across, from, from == b ? to : b, true);
  }
  for (int64_t left = 0; left < f.width(); left += lanes) {
    const Lattice here = shifted(between(columns, left, left + lanes), -left);
    if (here.count == 0) continue;
    for (int64_t h = 0; h < f.padded_half(); h += lanes)
      transpose_rows(turned + h / lanes * turned_floats + left * row_floats, a + h * row_floats);
    float* result = transform(f.down, a, b, true);
    multiply_rows(result, f.half(), f.untwist);
    for (int64_t i = 0; i < rows.count; i++) {
      const float* from = folded(f, result, rows.first + i) + here.first;
      float* to = plane + (rows.element + i * rows.stride) * pitch + here.element;
      copy_strided(to, here.stride, from, 1, here.count);
    }
  }
}

}  // namespace msctx::MSCTX_ISA
