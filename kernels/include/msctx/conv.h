// What the kernels and the glue have in common beside the interface: sizes of problems, names, threads. No torch.
#pragma once

#include <new>

#include "msctx/interface.h"

namespace msctx {

constexpr int directions = 4, places = 3;
constexpr int64_t statistics_piece = 64 << 10;  // its values: sums depend on it, never on threads

static inline const char* name_of(Direction direction) {
  constexpr const char* names[] = {"fprop", "dgrad", "wgrad", "matmul"};
  return names[int(direction)];
}
static inline const char* name_of(DType dtype) {
  constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16"};
  return names[int(dtype)];
}

static inline Op op_of(Direction direction, bool transposed) {
  if (direction == Direction::wgrad) return Op::backward_weight;
  return (direction != Direction::dgrad) != transposed ? Op::forward : Op::backward_data;
}

inline constexpr const char* activation_names[] = {"none", "relu", "clamp", "silu", "sigmoid", "hardswish", "hardsigmoid", "gelu", "gelu_tanh"};

// The bits of a magnitude (of what is not finite, those of Inf), and 32 of its place among the positions of all images: of equal magnitudes
// the first place is the largest.
static constexpr int64_t peak_of(int32_t bits, int64_t place) { return int64_t(bits) << 32 | uint32_t(~place); }
static inline int32_t bits_of(int64_t peak) { return int32_t(peak >> 32); }
static inline int64_t place_of(int64_t peak) { return uint32_t(~peak); }
constexpr int32_t infinity_bits = 0x7f800000;

static inline bool operator==(const Fingerprint& a, const Fingerprint& b) { return a.low == b.low && a.high == b.high; }

// What a result may have lost since values were cut a distance below the largest ones, whatever those meet. So that conv_run need not know
// how, it is in units of what the rest of the algorithm's error leaves of its bound: as much as error() of the result, and all is used up.
struct Lost {
  double most = 0.0;  // of any result
  // The same, of a result of which more is known: `each` for each of its products whose factors are not zero, and parts of the sums of the
  // magnitudes of its factors, in the order in which ConvTensors has those.
  double each = 0.0, of_first = 0.0, of_second = 0.0;

  void join(const Lost& other) {  // of other results
    most = most > other.most ? most : other.most;
    each = each > other.each ? each : other.each;
    of_first = of_first > other.of_first ? of_first : other.of_first;
    of_second = of_second > other.of_second ? of_second : other.of_second;
  }
};

// The form of a weight that is just its values, as w of ConvTensors.
constexpr int plain_weight = -1;
// The same, which the next call wants, too.
constexpr int kept_plain_weight = -3;
// What conv_run wants of a weight whose algorithm transforms it.
constexpr int window_norms = -2;

// A weight as an algorithm wants it (transformed, packed).
struct Prepared {
  static constexpr int most_forms = 4;
  // The weight in a form of the algorithm's, aligned to 64 bytes: what prepare() made for this `form`.
  const void* (*get)(void* arg, int form);
  void* arg;
  const void* operator()(int form = 0) const { return get(arg, form); }
};

static inline int64_t volume(const int64_t extent[3]) { return extent[0] * extent[1] * extent[2]; }
static inline int64_t group_c(const ConvProblem& p) { return p.c / p.groups; }
static inline int64_t group_k(const ConvProblem& p) { return p.k / p.groups; }
static inline int64_t x_size(const ConvProblem& p) { return p.n * p.c * volume(p.in); }
static inline int64_t y_size(const ConvProblem& p) { return p.n * p.k * volume(p.out); }
static inline int64_t w_size(const ConvProblem& p) { return p.k * group_c(p) * volume(p.window); }
static inline bool is_2d_f32(const ConvProblem& p) { return p.dims == 2 && p.dtype == DType::f32; }
// Sums without terms: the result, if there is one, is zeros.
static inline bool is_empty(const ConvProblem& p) { return x_size(p) == 0 || y_size(p) == 0 || w_size(p) == 0; }
// Whether what lies around an image, or between its elements, may be far more than the image.
static inline bool reaches_far(const ConvProblem& p) {
  for (int i = 0; i < 3; i++)
    if (p.stride[i] > 64 || p.pad[i] > 4096 || p.dilation[i] * (p.window[i] - 1) > 4096) return true;
  return false;
}
static inline bool has_unit(const int64_t v[3]) { return v[0] == 1 && v[1] == 1 && v[2] == 1; }

static constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline size_t align64(size_t bytes) { return (bytes + 63) & ~size_t(63); }

// One thread.
static inline Parallel serial() {
  return {1, nullptr, [](void*, int64_t tasks, void (*task)(void*, int64_t, int), void* arg) {
            for (int64_t i = 0; i < tasks; i++) task(arg, i, 0);
            return 1;
          }};
}

// body(index, slot) for each index below tasks; it throws nothing. Split work by the problem, never by parallel.threads: the bits must not
// depend on it.
template <class Body>
static inline void parallel_for(const Parallel& parallel, int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  if (tasks == 1) {
    body(int64_t(0), 0);
    return;
  }
  const int done = parallel.run(
      parallel.pool, tasks, [](void* arg, int64_t index, int slot) { (*static_cast<const Body*>(arg))(index, slot); },
      const_cast<void*>(static_cast<const void*>(&body)));
  if (!done) throw std::bad_alloc();
}

}  // namespace msctx
