// What the operators of libopapi share: their arguments, numbers in all dtypes, tensors of any strides.

#pragma once

#include <acl/acl.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "recorder.h"

using Sizes = std::vector<int64_t>;

struct aclTensor {
  Sizes sizes, strides;
  int64_t offset;
  aclDataType dtype;
  char* data;
};
struct aclScalar {
  double value;
};
struct aclIntArray : Sizes {
  using Sizes::Sizes;
};
struct aclTensorList : std::vector<const aclTensor*> {
  using std::vector<const aclTensor*>::vector;
};
struct aclOpExecutor {
  std::function<void()> run;
};

inline const char* name(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT: return "float32";
    case ACL_FLOAT16: return "float16";
    case ACL_BF16: return "bfloat16";
    case ACL_DOUBLE: return "float64";
    case ACL_INT8: return "int8";
    case ACL_UINT8: return "uint8";
    case ACL_INT16: return "int16";
    case ACL_INT32: return "int32";
    case ACL_INT64: return "int64";
    case ACL_BOOL: return "bool";
    default: return "?";
  }
}

// --- numbers -------------------------------------------------------------------------------------------------------------------

// Its lowest bits are rounded away, ties to even.
inline float rounded(float value, int bits) {
  uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t half = uint32_t{1} << (bits - 1), last = (word >> bits) & 1;
  if (std::isfinite(value)) word += half - 1 + last;
  return std::bit_cast<float>(word & ~((half << 1) - 1));
}

inline float to_half(float value) { return static_cast<float>(static_cast<_Float16>(value)); }
inline float to_hf32(float value) { return rounded(value, 12); }  // 11 bits of the 23

template <class T>
double at(const char* place) {
  T value;
  std::memcpy(&value, place, sizeof value);
  return static_cast<double>(value);
}

template <class T>
void put(char* place, double value) {
  const T converted = static_cast<T>(value);
  std::memcpy(place, &converted, sizeof converted);
}

inline double load(aclDataType dtype, const char* place) {
  switch (dtype) {
    case ACL_FLOAT: return at<float>(place);
    case ACL_FLOAT16: return at<_Float16>(place);
    case ACL_BF16: return std::bit_cast<float>(static_cast<uint32_t>(at<uint16_t>(place)) << 16);
    case ACL_DOUBLE: return at<double>(place);
    case ACL_INT8: return at<int8_t>(place);
    case ACL_UINT8: case ACL_BOOL: return at<uint8_t>(place);
    case ACL_INT16: return at<int16_t>(place);
    case ACL_INT32: return at<int32_t>(place);
    case ACL_INT64: return at<int64_t>(place);
    default: std::abort();
  }
}

inline void store(aclDataType dtype, char* place, double value) {
  switch (dtype) {
    case ACL_FLOAT: return put<float>(place, value);
    case ACL_FLOAT16: return put<_Float16>(place, value);
    case ACL_BF16: return put<uint16_t>(place, std::bit_cast<uint32_t>(rounded(value, 16)) >> 16);
    case ACL_DOUBLE: return put<double>(place, value);
    case ACL_INT8: return put<int8_t>(place, value);
    case ACL_UINT8: return put<uint8_t>(place, value);
    case ACL_BOOL: return put<uint8_t>(place, value != 0);
    case ACL_INT16: return put<int16_t>(place, value);
    case ACL_INT32: return put<int32_t>(place, value);
    case ACL_INT64: return put<int64_t>(place, value);
    default: std::abort();
  }
}

inline size_t width(aclDataType dtype) {
  switch (dtype) {
    case ACL_DOUBLE: case ACL_INT64: return 8;
    case ACL_FLOAT: case ACL_INT32: return 4;
    case ACL_FLOAT16: case ACL_BF16: case ACL_INT16: return 2;
    default: return 1;
  }
}

// --- tensors -------------------------------------------------------------------------------------------------------------------

inline int64_t count(const Sizes& sizes) {
  int64_t all = 1;
  for (const int64_t size : sizes) all *= size;
  return all;
}

// Calls a function with every index, in order.
template <class F>
void each(const Sizes& sizes, F&& f) {
  Sizes index(sizes.size());
  for (int64_t left = count(sizes); left > 0; left--) {
    f(index);
    for (size_t d = sizes.size(); d-- > 0 && ++index[d] == sizes[d];) index[d] = 0;
  }
}

// The place of an element; of a tensor that is broadcast, that of the one repeated.
inline char* place(const aclTensor& tensor, const Sizes& index) {
  if (index.size() < tensor.sizes.size()) std::abort();
  int64_t offset = tensor.offset;
  const size_t more = index.size() - tensor.sizes.size();
  for (size_t d = 0; d < tensor.sizes.size(); d++)
    if (tensor.sizes[d] != 1) offset += index[d + more] * tensor.strides[d];
  return tensor.data + offset * static_cast<int64_t>(width(tensor.dtype));
}

inline double get(const aclTensor& tensor, const Sizes& index) { return load(tensor.dtype, place(tensor, index)); }
inline void set(const aclTensor& tensor, const Sizes& index, double value) { store(tensor.dtype, place(tensor, index), value); }

inline int later(uint64_t* workspace, aclOpExecutor** executor, std::function<void()> run) {
  *workspace = 0;
  *executor = new aclOpExecutor{std::move(run)};
  return 0;
}

template <class F>
std::function<void()> map(const aclTensor& in, const aclTensor& out, F f) {
  return [=] { each(out.sizes, [&](const Sizes& i) { set(out, i, f(get(in, i))); }); };
}

template <class F>
std::function<void()> map(const aclTensor& a, const aclTensor& b, const aclTensor& out, F f) {
  return [=] { each(out.sizes, [&](const Sizes& i) { set(out, i, f(get(a, i), get(b, i))); }); };
}

#define EXECUTES(operator)                                                                       \
  int operator(void*, uint64_t, aclOpExecutor* executor, aclrtStream) {                          \
    executor->run();                                                                             \
    delete executor;                                                                             \
    return 0;                                                                                    \
  }                                                                                              \
  int operator##GetWorkspaceSize

// Documented of cubeMathType: a matrix unit with float16 alone (910A, 310P) refuses float32 inputs that it may not round.
inline bool has_halves_alone() {
  static const std::string soc = recorder::setting("RECORDER_SOC", "");
  static const bool found = soc == "Ascend910A" || soc == "Ascend910B" || soc.starts_with("Ascend910P") || soc.starts_with("Ascend310P");
  return found;
}
inline int refused(const aclTensor& in, int8_t cube) { return in.dtype == ACL_FLOAT && cube == 0 && has_halves_alone() ? 161002 : 0; }
inline double as_unit_sees(double value, int8_t cube) {
  if (cube == 0) return value;
  return cube == 2 || has_halves_alone() ? to_half(value) : to_hf32(value);
}

#define LATER uint64_t *workspace, aclOpExecutor **executor
#define OPERATOR(...)                                                                            \
  if (const int code = recorder::called(std::string(__func__, std::strlen(__func__) - 16).c_str() __VA_OPT__(, ) __VA_ARGS__)) \
  return code
#define ON_MATRIX_UNIT(in, cube)                                     \
  OPERATOR(name(in->dtype), "cubeMathType=" + std::to_string(cube)); \
  if (const int code = refused(*in, cube)) return code
