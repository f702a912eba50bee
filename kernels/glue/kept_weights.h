// Weights as algorithms want them, kept from call to call. That a weight is still the same is never taken from where it lies: torch's
// version counter does not see fused optimizers, .data, aliases of NumPy and DLPack, or other processes. So its bytes are looked at.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <string>

#include "msctx/conv.h"

namespace msctx::glue {

struct KeptWeight;  // one weight in one form

// What one call asks of the kept forms of a weight. It lives as long as the run.
class Keeper {
 public:
  // `what`: all that its forms depend on beside the weight.
  Keeper(const Taken&, const at::Tensor& weight, std::string what, const Parallel&, bool is_frozen);
  Kept kept() { return {form, this}; }  // those of an algorithm
  at::Tensor tensor(c10::function_ref<at::Tensor()> make);  // that of torch
  int found = 0, made = 0;  // forms

 private:
  static const void* form(void* self, int number, size_t bytes, int (*make)(void* with, void* to), void* with);
  template <class New>
  std::shared_ptr<KeptWeight> current(int number, bool counts, size_t bytes, const New& make);
  const Fingerprint& print();
  const void* plain(bool is_kept);
  bool is_same(KeptWeight&);

  const Taken& policy_;
  const at::Tensor& weight_;
  std::string key_;
  at::Tensor plain_;  // the weight, contiguous, once that was wanted
  const Parallel& parallel_;
  const bool is_frozen_;
  std::optional<Fingerprint> print_;
  std::shared_ptr<KeptWeight> used_[Prepared::most_forms + 1];  // by form; that of window_norms is the last one
};

// What is kept meanwhile in this thread goes at the end: the forms of those that lose would take the room of other weights' forms, and these
// would be measured, and run, as if nothing was kept.
class WhileMeasuring {
 public:
  WhileMeasuring();
  ~WhileMeasuring();
  WhileMeasuring(const WhileMeasuring&) = delete;

 private:
  const int64_t outer_;
};

// What the forms of an algorithm depend on.
std::string key_of(const ConvAlgorithm&, ConvProblem, Op);

// Memory that calls use for a while, of our allocator (allocator.cpp), also where that counts no tensors. For any thread.
void* take_scratch(size_t bytes);
void release_scratch(void* data);
// Gives back most of what no call uses now: no policy is in force any more.
void trim_scratch();

// Frees what belongs to weights that are gone; with `all`, everything that no call uses now.
void drop_kept_weights(bool all = false);

}  // namespace msctx::glue
