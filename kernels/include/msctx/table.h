// The table of all algorithms, as each instruction set compiles it.
#pragma once

#include "msctx/conv.h"

namespace msctx {

constexpr int directions = 4, places = 3;

// What `normal` may expect of a row, from the problem alone: never from threads, memory or load.
enum class Merit : int32_t {
  last_resort,
  fair,         // among ours, a good guess
  runner_up,    // measured to beat torch's own path on problems like this; another row that most often can take them, by more
  beats_torch_channels_first,  // measured to beat it, but not that for channels_last
  beats_torch,                 // in the layout of the call, if the row reads that
  beats_torch_by_far,          // even where the row has to be given copies in its own layout
};

// Rows of one name differ in the arithmetic of their products: the first that is allowed and can take a problem computes it.
struct ConvRow {
  Direction direction;
  const char* name;  // the option's value
  const ConvAlgorithm* algorithm;
  Merit (*merit)(const ConvProblem&, Op);  // null: nothing is expected
  bool (*exists)(Op) = nullptr;  // null: for all; another Op has none of this name, and does not list it
};

// What distinguishes two tensors, by all of their bytes: see cpu/fingerprint.cpp.
struct Fingerprint {
  uint64_t low, high;
  bool operator==(const Fingerprint&) const = default;
};

// What a piece of a tensor holds: see cpu/statistics.cpp. Range and sums are of the finite values.
struct Statistics {
  double least = __builtin_inf(), largest = -__builtin_inf(), sum = 0, squares = 0;
  int64_t count = 0, nan = 0, positive_inf = 0, negative_inf = 0, zero = 0, negative = 0;
};
constexpr int64_t statistics_piece = 64 << 10;  // its values: sums depend on it, never on threads

// Passes over tensors, beside convolutions.
struct Passes {
  Fingerprint (*fingerprint)(const void* data, int64_t bytes, const Parallel&);
  // Of each piece of a contiguous tensor.
  void (*statistics)(DType, const void* data, int64_t count, Statistics* pieces, const Parallel&);
  bool (*has_nonfinite)(DType, const void* data, int64_t count);
  // Raises a number for each channel to the bits of its largest magnitude, those of Inf where one is not finite.
  void (*peaks)(const float* values, int64_t n, int64_t channels, int64_t positions, bool channels_last, int32_t* bits, const Parallel&);
  // Applies an epilogue to a result [n][channels][positions], or with its channels last.
  void (*finish)(const Epilogue&, float* result, int64_t n, int64_t channels, int64_t positions, bool channels_last, const Parallel&);
};

struct ConvTable {
  const char* isa;
  const ConvRow* rows;
  int count;
  const Passes* passes = nullptr;  // null: those of avx512
  bool is_computed_again = true;  // by conv_run, where a result is not finite: the CPU's
};

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

namespace generic { const ConvTable& table(); }
namespace avx2 { const ConvTable& table(); }
namespace avx512 { const ConvTable& table(); }
// Those with a matrix unit have the rows that run on it, and then those of avx512.
namespace amx { const ConvTable& table(); }
namespace amx_fp16 { const ConvTable& table(); }
namespace amx_emulated { const ConvTable& table(); }
namespace amx_fp16_emulated { const ConvTable& table(); }

}  // namespace msctx
