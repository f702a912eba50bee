// One convolution as PyTorch requests it, and what was decided about it.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "msctx/table.h"

namespace msctx {

// A convolution call in plain data, whose bytes are a key: `problem` is the ordinary convolution behind a transposed one.
struct ConvCall {
  ConvProblem problem;
  int64_t output_padding[3];
  const std::string* module;  // its path, where a watched model has it; one string per path
  // Of a matrix product: its batches (0: it has none) and rows, and whether its left factor lies transposed. rows is 0 for convolutions.
  int64_t batches, rows;
  int64_t device;  // its number among those of its kind; 0 on the CPU
  int32_t left_transposed;
  int32_t torch_keeps_bits;  // torch's own path of it: its bits depend on neither threads nor rows
  int32_t transposed;
  int32_t channels_last;
  // What follows it in the same call (see Epilogue): the activation, and whether it has each of scale, shift, other, whether that is last.
  int32_t activation, has_scale, has_shift, has_other, adds_last;
  int32_t torch_is_deterministic;  // torch's own flags
  // The same of CUDA alone; allows_tf32: nor does the policy forbid it.
  int32_t torch_allows_tf32, allows_tf32, torch_allows_cudnn, torch_benchmarks;
};
static_assert(std::has_unique_object_representations_v<ConvCall>, "padding would make two keys of one call");

// What choices() and rules show of a call; the shapes are torch's. An extent that is the same along all axes is written once.
struct ConvText {
  std::string input, weight, stride, padding, dilation, output_padding, groups, transposed, dtype, layout, epilogue, module;
  bool operator==(const ConvText&) const = default;
};
// All of its fields, by the names that Python has for them.
inline constexpr std::pair<const char*, std::string ConvText::*> fields_of_text[] = {
    {"input", &ConvText::input}, {"weight", &ConvText::weight}, {"stride", &ConvText::stride}, {"padding", &ConvText::padding},
    {"dilation", &ConvText::dilation}, {"output_padding", &ConvText::output_padding}, {"groups", &ConvText::groups},
    {"transposed", &ConvText::transposed}, {"dtype", &ConvText::dtype}, {"layout", &ConvText::layout},
    {"epilogue", &ConvText::epilogue}, {"module", &ConvText::module}};
ConvText text_of(const ConvCall&);
// A text of Reasons with the numbers of the call.
std::string filled(const char* reason, const ConvCall&);
// The problem in a line, without its module: as choices() prints it.
std::string line_of(const ConvText&);

static inline const char* name_of(Direction direction) {
  constexpr const char* names[] = {"fprop", "dgrad", "wgrad", "matmul"};
  return names[int(direction)];
}
static inline const char* name_of(DType dtype) {
  constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16"};
  return names[int(dtype)];
}
std::string joined(const int64_t* sizes, size_t count);  // 2x3x4

}  // namespace msctx
