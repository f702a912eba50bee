// In which dtype operators compute: policies, numbered combinations of them for the devices, and what is in force in a thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

#include "msctx/interface.h"
#include "msctx/json.h"

namespace msctx::glue {

constexpr int precision_devices = 3;
constexpr c10::DeviceType types_of_devices[precision_devices] = {at::kCPU, at::kCUDA, at::kPrivateUse1};
constexpr int most_listed = 8;        // inputs or outputs whose dtypes a rule can name

// Beside the codes of dtypes: 0 (as it is), and places in `dtypes` from 1 on.
constexpr uint8_t origin = 255;

// What a policy asks of operators: a PrecisionRule of Python's (msctx/options/precision_policy.py); without one, nothing.
struct PrecisionRule {
  explicit PrecisionRule(const Json& = {});
  uint8_t to[3];       // what float32, float16 and bfloat16 become
  uint8_t output;      // 0: as computed; origin: the inputs' own, the widest of them; else a dtype
  uint8_t widest;      // inputs of several dtypes become the widest: 1: of them all, 2: of those that operators have computed
  uint8_t through;     // inputs are rounded to this dtype before the cast of `to`
  bool checks_index;   // indices are checked before they are used
  bool whole;          // it holds for all that the operator is made of, also where nothing is cast
  uint8_t inputs[most_listed]{}, outputs[most_listed]{};  // dtypes by position, over `to` and `output`
};

constexpr std::array<c10::ScalarType, 4> dtypes{at::kFloat, at::kHalf, at::kBFloat16, at::kDouble};
constexpr const char* names_of_dtypes[] = {"float32", "float16", "bfloat16", "float64"};
inline c10::ScalarType dtype_of(uint8_t place) { return dtypes[place - 1]; }
// 0 for float32, 1 for float16, 2 for bfloat16, 3 for float64, 4 for all others.
constexpr int kinds_of_dtype = 5;
inline int kind_of(c10::ScalarType dtype) {
  for (int i = 0; i < int(dtypes.size()); i++)
    if (dtypes[i] == dtype) return i;
  return kinds_of_dtype - 1;
}

// Of an operator, as Python has them (COUNTED in msctx/native/precision_policies.py): calls by the dtype computed in; casts inserted; calls repeated
// in float32; traced, for code that runs elsewhere; of backward passes, and under a torch.autocast inside, by dtype.
struct Counted {
  enum { calls = 0, casts = kinds_of_dtype, again, traced, backward, overruled = backward + kinds_of_dtype, all = overruled + kinds_of_dtype };
};
using PrecisionCounts = std::array<std::atomic<int64_t>, Counted::all>;

// Weights in the dtype that a policy computes in, by tensor, kept from call to call while frozen_weights promises that they do not change.
class KeptCasts {
 public:
  // The tensor in another dtype, outside autograd: only for tensors whose cast is not to be recorded. `made` counts the casts.
  at::Tensor get(const at::Tensor& tensor, c10::ScalarType to, int64_t& made);
  void drop();

 private:
  struct Kept {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> of;  // no other tensor gets its address as long as this is here
    const void* at;
    at::Tensor cast;
  };
  std::unordered_map<const c10::TensorImpl*, Kept> kept_;
};

struct PrecisionPolicy {
  explicit PrecisionPolicy(const Json&);
  const PrecisionRule& rule(int op) const { return distinct[place[size_t(op)]]; }
  void count(int op, int what, int64_t more = 1) const;
  const PrecisionCounts* counted(int op) const { return made[size_t(op)].load(std::memory_order_acquire); }  // nullptr: nothing yet
  int64_t retries;                     // 1: what has no kernel for 16 bits is computed in float32, with a warning; 2: without one
  std::optional<c10::ScalarType> low;  // that its mode lowers to
  bool frozen;                         // weights do not change while it is in force
  bool lowers_to_half = false;
  mutable KeptCasts kept_casts;

 private:
  // There may be thousands of policies, of few rules each: all zero is the first, which leaves an operator alone.
  std::vector<PrecisionRule> distinct{PrecisionRule()};
  std::vector<uint16_t> place;  // by operator
  std::unique_ptr<std::atomic<PrecisionCounts*>[]> made;
};

// The policies of the devices. Where a torch.autocast overrules some of them, that too has a number, so that compiled code is distinguished.
struct Combination {
  std::array<const PrecisionPolicy*, precision_devices> policies;
  int first, overruled;  // the number while nothing is overruled; a bit for each device that is
};

// What is in force in this thread: nullptr: nothing. It travels to the threads of the backward pass, and is part of what compiled
// code is guarded by: its number is kept as the autocast dtypes of devices that nobody has.
const Combination* combination_in_force();

// Whether the running backward pass computes gradients. It does so in the dtypes of its forward pass, whose results it is given, also
// where it records a graph for another one; but not in a checkpoint, which computes its forward pass again, nor in what somebody has
// written out himself: the backward pass of a torch.autograd.Function, and where he enters the device's policy in it, as in a hook.
bool is_backward(int device);

}  // namespace msctx::glue
