// The transforms of Winograd's algorithms, in one dimension: 6 values of a tile at 6 points (see winograd.h).
#pragma once

namespace msctx::MSCTX_ISA {
namespace {

// --- the matrices: Cook and Toom's construction from five numbers and infinity ------------------------------------------

constexpr int side = 6, points = side * side;
// After 0 in pairs a, -a: see apply_rows and apply_columns. With the usual 1 and 2 the largest errors are three to eight times these; the
// input matrix is exact in float with both (on choosing points: Barabasz, Anderson, Soodhalter, Gregg, ACM TOMS 46(4), 2020).
constexpr double finite_point[side - 1] = {0, 0.75, -0.75, 1.5, -1.5};

template <int rows_, int columns_>
struct Matrix {
  static constexpr int rows = rows_, columns = columns_;
  float at[rows][columns] = {};
};

constexpr double power(double base, int exponent) { return exponent == 0 ? 1.0 : base * power(base, exponent - 1); }

// Row i: the coefficients of the polynomial that is 0 at all finite points but the i-th (the last: at all of them).
constexpr Matrix<side, side> make_input_matrix() {
  Matrix<side, side> result;
  for (int i = 0; i < side; i++) {
    double coefficient[side + 1] = {1};
    for (int p = 0, degree = 0; p < side - 1; p++) {
      if (p == i) continue;
      for (int j = ++degree; j >= 0; j--) coefficient[j] = (j ? coefficient[j - 1] : 0) - finite_point[p] * coefficient[j];
    }
    for (int j = 0; j < side; j++) result.at[i][j] = float(coefficient[j]);
  }
  return result;
}

// Row i: the powers of the i-th point, over the value there of the polynomial above. At infinity only the last power counts.
template <int taps>
constexpr Matrix<side, taps> make_filter_matrix() {
  Matrix<side, taps> result;
  for (int i = 0; i < side - 1; i++) {
    double value = 1;
    for (int p = 0; p < side - 1; p++) value *= p == i ? 1 : finite_point[i] - finite_point[p];
    for (int j = 0; j < taps; j++) result.at[i][j] = float(power(finite_point[i], j) / value);
  }
  result.at[side - 1][taps - 1] = 1;
  return result;
}

// Column i: the powers of the i-th point.
template <int outputs>
constexpr Matrix<outputs, side> make_output_matrix() {
  Matrix<outputs, side> result;
  for (int j = 0; j < outputs; j++)
    for (int i = 0; i < side - 1; i++) result.at[j][i] = float(power(finite_point[i], j));
  result.at[outputs - 1][side - 1] = 1;
  return result;
}

struct InputMatrix {
  static constexpr auto matrix = make_input_matrix();
};
template <int taps>
struct FilterMatrix {
  static constexpr auto matrix = make_filter_matrix<taps>();
};
template <int outputs>
struct OutputMatrix {
  static constexpr auto matrix = make_output_matrix<outputs>();
};

// --- their products with vectors of V, a Vec of some instruction set; all coefficients are known when this is compiled ----

// sum + factor * term; the first term of a sum starts it.
template <class V>
static inline __attribute__((always_inline)) void add_term(V& sum, bool& started, float factor, V term) {
  if (factor == 0.0f) return;
  if (!started)
    sum = factor == 1.0f ? term : V::all(factor) * term;
  else
    sum = factor == 1.0f ? sum + term : factor == -1.0f ? sum - term : fma(V::all(factor), term, sum);
  started = true;
}

// to = matrix * from. The rows of the points a and -a differ in the signs of the odd columns only.
template <class M, class V>
static inline __attribute__((always_inline)) void apply_rows(const V* from, V* to) {
#pragma GCC unroll 4
  for (int pair = 0; pair < 4; pair++) {  // 0, (1, 2), (3, 4), 5
    const int i = pair == 0 ? 0 : 2 * pair - 1;
    V even = V::all(0.0f), odd = even;
    bool has_even = false, has_odd = false;
#pragma GCC unroll 6
    for (int j = 0; j < M::matrix.columns; j++)
      add_term(j % 2 ? odd : even, j % 2 ? has_odd : has_even, M::matrix.at[i][j], from[j]);
    to[i] = has_even && has_odd ? even + odd : has_even ? even : odd;
    if (pair == 1 || pair == 2) to[i + 1] = even - odd;
  }
}

// to = matrix * from. The columns of the points a and -a differ in the signs of the odd rows only.
template <class M, class V>
static inline __attribute__((always_inline)) void apply_columns(const V* from, V* to) {
  const V plus[2] = {from[1] + from[2], from[3] + from[4]}, minus[2] = {from[1] - from[2], from[3] - from[4]};
#pragma GCC unroll 6
  for (int j = 0; j < M::matrix.rows; j++) {
    bool started = false;
    add_term(to[j], started, M::matrix.at[j][0], from[0]);
    add_term(to[j], started, M::matrix.at[j][1], j % 2 ? minus[0] : plus[0]);
    add_term(to[j], started, M::matrix.at[j][3], j % 2 ? minus[1] : plus[1]);
    add_term(to[j], started, M::matrix.at[j][5], from[5]);
  }
}

}  // namespace
}  // namespace msctx::MSCTX_ISA
