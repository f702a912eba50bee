// Weights as algorithms want them, kept from call to call. That a weight is still the same is never taken from where it lies: torch's
// version counter does not see fused optimizers, .data, aliases of NumPy and DLPack, or other processes. So its bytes are looked at.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "msctx/api.h"
#include "msctx/policy.h"

namespace msctx::glue {

struct KeptWeight;  // one weight in one form

// What one call asks of the kept weights: give `prepared()` to conv_run. It lives as long as the run.
class Keeper {
 public:
  Keeper(const Policy&, const ConvAlgorithm&, const ConvProblem&, Op, const at::Tensor& weight, const Parallel&, bool is_frozen);
  Prepared prepared() { return {get, this}; }
  int found = 0, made = 0;  // forms

 private:
  static const void* get(void* self, int form);
  std::shared_ptr<KeptWeight> form(int form);
  const Fingerprint& print();
  const void* plain();
  bool is_same(KeptWeight&);

  const Policy& policy_;
  const ConvAlgorithm& algorithm_;
  const ConvProblem& p_;
  const Op op_;
  const at::Tensor& weight_;
  at::Tensor plain_;  // the weight, contiguous, once that was wanted
  const Parallel& parallel_;
  const bool is_frozen_;
  std::optional<Fingerprint> print_;
  std::shared_ptr<KeptWeight> used_[Prepared::most_forms], norms_;
};

// What torch makes of a weight.
struct KeptTensor {
  at::Tensor tensor;
  double norm = 0.0;  // no sum of the magnitudes of the weights of a result is larger
};

// The same of a weight and a tensor of values for its channels (may be undefined), kept from call to call in the same way: `what` says
// what it depends on beside them.
KeptTensor kept_tensor(
    const Policy&, const at::Tensor& weight, const at::Tensor& values, const std::string& what, const Parallel&, bool is_frozen,
    const std::function<KeptTensor()>& make);

// Frees what belongs to weights that are gone; with `all`, everything that no call uses now.
void drop_kept_weights(bool all = false);

}  // namespace msctx::glue
