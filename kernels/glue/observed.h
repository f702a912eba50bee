// What observers read of an operator's tensors and other arguments. Nothing here is seen by autograd, by modes or by observers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "msctx/table.h"

namespace msctx::glue {

// While it lives, operators that this thread calls go to the back end at once.
class Unseen {
 public:
  Unseen();
  ~Unseen();

 private:
  struct Guards;
  Guards* guards_;
};

// Why it is no plain dense tensor: a subclass, traced, wrapped, without data, of another layout. nullptr: it is one.
const char* why_unreadable(const at::Tensor&);
inline bool is_readable(const at::Tensor& t) { return !why_unreadable(t); }
// Whether a subclass or a transform computes one of the tensors by operators of its own.
bool has_wrapped(at::ArrayRef<c10::IValue>);
bool has_nonfinite(const at::Tensor&);  // of floating-point and complex ones
Statistics statistics_of(const at::Tensor&);
std::optional<Statistics> known_of(const at::Tensor&);  // nothing where it cannot be read
// Of the values in logical order, their dtype and shape: the same for any strides. With `statistics` also those, in one pass over a
// contiguous tensor; those of others are read as they lie in memory.
uint64_t digest_of(const at::Tensor&, Statistics* statistics = nullptr);
// In NumPy's format; dtypes that it does not have (bfloat16, float8, complex32) as float32 or complex64, or, with `keeps_bits`, as
// unsigned integers with the same bits. Throws where the file cannot be written whole.
void write_npy(const at::Tensor&, const std::string& path, bool keeps_bits);

// All tensors in it, lists included.
void tensors_in(const c10::IValue&, std::vector<at::Tensor>&);
// As JSON: numbers, texts, lists; a tensor as {"tensor": its place among the tensors of the call}; dtypes and the like as {"torch": name},
// a generator with its state.
void write_json(std::string&, const c10::IValue&, int& tensors);

}  // namespace msctx::glue
