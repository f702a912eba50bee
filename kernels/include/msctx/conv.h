// What an algorithm declares about itself. Plain data, no torch: the table and the glue share it.
#pragma once

#include "msctx/interface.h"

namespace msctx {

inline constexpr const char* activation_names[] = {"none", "relu", "clamp", "silu", "sigmoid", "hardswish", "hardsigmoid", "gelu", "gelu_tanh"};

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

// Why an algorithm cannot take a problem; empty: it can. The texts are literals, complete as "it takes no …" sentences are.
// {stride} and {dilation} in a text stand for those of the problem.
struct Reasons {
  int count = 0;
  const char* text[8];
  void add(const char* reason) {
    if (count < 8) text[count++] = reason;
  }
  void add_if(bool holds, const char* reason) {
    if (holds) add(reason);
  }
};

static inline size_t no_workspace(const ConvProblem&, Op, int) { return 0; }

struct ConvAlgorithm {
  const char* name;  // that of its file
  // The arithmetic of the products: "strict" (float32 FMA, or the dtype's own wider sum), "fp32-grade" (products of parts of the
  // values, which lose no more than float32 sums do), "tf32" (values rounded to 11 bits or more), "float64".
  const char* math = "strict";
  // The additions of each result have one order, whatever the number of threads: same bits in every run.
  bool fixed_order = true;
  // The order does not depend on the vector width either: same bits from every instruction set (a NaN's payload aside).
  bool same_on_every_isa = true;
  void (*reasons)(const ConvProblem&, Op, Reasons&);
  // Bytes of scratch that run() needs, beside tensors and prepared weights; may depend on the number of threads.
  size_t (*workspace)(const ConvProblem&, Op, int threads) = no_workspace;
  // Bound of |error| in units of the largest result or, where results cancel, of the largest sum of |products| behind one: of any data;
  // where most_spread is not 0, as far as a search for the worst data found. No less than that of gemm, if conv_run may have that compute it.
  double (*error)(const ConvProblem&, Op);
  // workspace is aligned to 64 bytes and holds what workspace() returned. Problems without reasons that are not empty only. false: these values are
  // beyond its arithmetic (Inf, NaN), and nothing of use was written: conv_run has gemm compute them.
  bool (*run)(const ConvProblem&, Op, const ConvTensors&, const Prepared&, void* workspace, const Parallel&);
  // An Inf or NaN, or an overflow inside, reaches results that do not depend on it: where a result is not finite, conv_run
  // computes the whole problem again, by the gemm algorithm.
  bool spreads_nonfinite = false;
  // It computes in transforms, whose errors are those of a tile's largest values, also where nothing reads these: how far their norms may
  // be above what error() is in units of, see conv_run. 0: its errors are parts of the products themselves.
  double most_spread = 0.0;
  // Whether x and y may be channels_last. One that does not read it is given copies.
  bool reads_channels_last = false;
  // Whether it applies ConvTensors::epilogue as it stores its results in float32, where `other` is null or channels_last. The bits are
  // those of a pass over the result afterwards. An epilogue is float32: other dtypes have none.
  bool finishes = false;
  // What run() asks of Prepared: bytes of the weight in a form, and how it is made of w. Null: it reads w itself. The form does not
  // depend on n, nor, where prepared_for_all_sizes, on in and out: it may come from a call with others.
  size_t (*prepared_size)(const ConvProblem&, Op, int form) = nullptr;
  void (*prepare)(const ConvProblem&, Op, int form, const void* w, void* prepared, const Parallel&) = nullptr;
  bool prepared_for_all_sizes = false;
  // Whose code it is, for choices().
  const char* provider = "msctx";
};

// --- sizes of a problem -----------------------------------------------------------------------------------------------

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

// --- threads ----------------------------------------------------------------------------------------------------------

// One thread.
static inline Parallel serial() {
  return {1, nullptr, [](void*, int64_t tasks, void (*task)(void*, int64_t, int), void* arg) {
            for (int64_t i = 0; i < tasks; i++) task(arg, i, 0);
          }};
}

// body(index, slot) for each index below tasks. Split work by the problem, never by parallel.threads: the bits must not depend on it.
template <class Body>
static inline void parallel_for(const Parallel& parallel, int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  if (tasks == 1) {
    body(int64_t(0), 0);
    return;
  }
  parallel.run(
      parallel.pool, tasks, [](void* arg, int64_t index, int slot) { (*static_cast<const Body*>(arg))(index, slot); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace msctx
