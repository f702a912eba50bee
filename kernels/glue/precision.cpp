// Precision policies: what runs at PyTorch's autocast keys, in which dtypes each operator computes.
#include <ATen/ops/aminmax_ops.h>
#include <ATen/ops/to_ops.h>
#include <c10/core/GradMode.h>
#include <ATen/TracerMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "glue/precision_policy.h"
#include "glue/python.h"
#include "glue/registered.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

using torch::jit::Stack;

constexpr c10::DispatchKey keys_of_devices[precision_devices] = {
    c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastPrivateUse1};
constexpr c10::DispatchKey sparse_keys_of_devices[precision_devices] = {
    c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparsePrivateUse1};

// An optimizer steps: what records no graph and is of no backward pass is not the model's own arithmetic, and not cast. A closure may
// compute the model.
thread_local bool steps = false;

bool is_paused() { return steps && !c10::GradMode::is_enabled() && torch::autograd::get_current_graph_task_id() == -1; }

// An operator of a device is computed as a whole: its parts are not governed. The exclusion of the key says that to the dispatcher. The levels
// of torch.func each begin with the keys that the call had before: so it is also noted under what it is computed.
thread_local std::array<const Combination*, precision_devices> whole_under{};

class AsWhole {
 public:
  explicit AsWhole(int device) : device_(device), before_(whole_under[size_t(device)]), excluded_(keys_of_devices[device]) {
    whole_under[size_t(device)] = combination_in_force();
  }
  ~AsWhole() { whole_under[size_t(device_)] = before_; }
  AsWhole(const AsWhole&) = delete;

 private:
  int device_;
  const Combination* before_;
  c10::impl::ExcludeDispatchKeyGuard excluded_;
};

bool is_16_bit(c10::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

at::Tensor cast(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (tensor.scalar_type() == dtype) return tensor;
  // Those of jagged attention, which torch.nested has rounded to the dtype of autocast, whatever the policy is
  TORCH_CHECK(
      tensor.layout() != at::kStrided || !tensor.is_nested() || tensor.is_contiguous(),
      "PyTorch cannot cast a nested tensor that is not contiguous: call contiguous(). For attention of jagged tensors set "
      "precision_mode=force_fp16, or none.");
  return at::_ops::to_dtype::call(tensor, dtype, false, false, std::nullopt);
}

// Whether an error means that an operator has no kernel for its dtype.
bool lacks_kernel(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  for (const char* part :
       {"not implemented for 'Half'", "not implemented for 'BFloat16'", "Low precision dtypes not supported", "doesn't support tensors of type: Half",
        "doesn't support tensors of type: BFloat16", "Unsupported dtype Half", "Unsupported dtype BFloat16", "must be either float or double", "of float, double", "other than float and double", "to be Half, Float or Double"})
    if (text.find(part) != std::string_view::npos) return true;
  return false;
}

c10::DispatchKeySet keys_below(c10::DispatchKeySet keys, int device) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, keys_of_devices[device]);
}

// One operator at one device's key.
class Governed final : public c10::OperatorKernel {
 public:
  // `writes`: to a tensor. Its results have their dtype already, and so do the values of a sparse one, which operators compute.
  Governed(const c10::OperatorHandle& op, int slot, int device, bool is_matrix, bool writes, std::optional<c10::KernelFunction> before)
      : slot_(slot), device_(device), is_matrix_(is_matrix), writes_(writes), before_(std::move(before)) {
    const auto& arguments = op.schema().arguments();
    int tensors = 0;
    const bool quantizes = op.schema().name().rfind("aten::quantize", 0) == 0;  // the dtype is that of integers
    for (size_t i = 0; i < arguments.size(); i++) {
      const std::string& name = arguments[i].name();
      const std::string type = arguments[i].type()->str();
      if ((name == "dtype" || name == "out_dtype") && !quantizes) dtype_ = int(i);
      if (name == "index" || name == "indices") index_ = int(i);
      if (name == "dim") dim_ = int(i);
      if (name == "running_mean") has_statistics_ = true;
      if (name == "weight" || name == "bias") weights_.push_back(tensors);
      tensors += type.rfind("Tensor", 0) == 0;
    }
    // statistics are updated in place, and those of a batch keep their weights with them
    for (size_t i = 0; i < arguments.size(); i++)
      if (!has_statistics_ || i == 0) inputs_.push_back(int(i));
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::DispatchKeySet below = keys_below(keys, device_);
    const Combination* combination = combination_in_force();
    const PrecisionPolicy* policy = combination ? combination->policies[size_t(device_)] : nullptr;
    if (!policy || combination->overruled >> device_ & 1) {
      before_ ? before_->callBoxed(op, keys, stack) : op.redispatchBoxed(below, stack);
      if (policy && !writes_) count_overruled(*policy, *stack, op);
      return;
    }
    if (writes_) {
      std::optional<AsWhole> guard;
      if (keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Sparse))) guard.emplace(device_);
      return op.redispatchBoxed(below, stack);
    }
    if (is_paused() || whole_under[size_t(device_)] == combination) return op.redispatchBoxed(below, stack);
    if (is_backward(device_)) {
      notice_backward(*policy, *stack, op);
      op.redispatchBoxed(below, stack);
      return;
    }
    govern(*policy, op, below, stack);
  }

 private:
  struct Found {
    c10::ScalarType widest = at::kByte, inputs = at::kByte, computed = at::kByte;  // as given: of all; without weights; of what operators made
    bool any = false, mixed = false;
    c10::ScalarType sparse = at::kByte;  // of the sparse factors: their product is computed in it
    bool is_left = false;  // one of float64 or of oneDNN's layout, or a sparse one of integers: these are computed as they are
    bool has_double = false, is_complex = false;
    bool traced = false;  // a stand-in that has no values: code is being compiled
  };

  bool is_eligible(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.device().type() != types_of_devices[device_]) return false;
    const int kind = kind_of(tensor.scalar_type());
    return kind < 3 && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
  }

  // Calls `see` for each tensor of a value; what it returns takes the tensor's place, unless it is undefined.
  template <class See>
  static void each_of(c10::IValue& value, const See& see) {
    if (value.isTensor()) {
      if (at::Tensor made = see(value.toTensor()); made.defined()) value = std::move(made);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      bool has_changed = false;
      for (const at::Tensor tensor : value.toTensorList()) {
        at::Tensor made = see(tensor);
        has_changed |= made.defined();
        all.push_back(made.defined() ? std::move(made) : tensor);
      }
      if (has_changed) value = std::move(all);
    }
  }

  // The same of the inputs, with the position of each.
  template <class See>
  void each(Stack& stack, size_t base, const See& see) const {
    int position = 0;
    for (const int i : inputs_) {
      c10::IValue& value = stack[base + size_t(i)];
      if (value.isTensor() ? !value.toTensor().defined() : !value.isTensorList()) continue;
      each_of(value, [&](const at::Tensor& tensor) { return see(tensor, position); });
      position++;
    }
  }

  bool is_weight(int position) const { return std::find(weights_.begin(), weights_.end(), position) != weights_.end(); }

  // Whether no operator has computed it: something that is trained, or a view of that.
  static bool is_parameter(const at::Tensor& tensor) {
    if (!tensor.requires_grad()) return false;
    return tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
  }

  Found look(Stack& stack, size_t base) const {
    Found found;
    const auto widen = [](c10::ScalarType& known, c10::ScalarType dtype) { known = known == at::kByte || known == dtype ? dtype : at::kFloat; };
    each(stack, base, [&](const at::Tensor& tensor, int position) {
      const bool jagged = tensor.layout() == at::kJagged, sparse = !jagged && tensor.layout() != at::kStrided;
      found.traced |= !jagged && tensor.key_set().has(c10::DispatchKey::Python);
      found.is_complex |= tensor.is_complex();
      found.has_double |= tensor.scalar_type() == at::kDouble && !tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.dim() > 0;
      found.is_left |= found.has_double || tensor.layout() == at::kMkldnn || (sparse && !is_eligible(tensor));
      if (!is_eligible(tensor)) return at::Tensor();
      const c10::ScalarType dtype = tensor.scalar_type();
      found.mixed |= found.any && dtype != found.widest;
      widen(found.widest, dtype);
      // the CPU's products of compressed layouts have no kernels for 16 bits
      if (sparse) widen(found.sparse, device_ == 0 && tensor.layout() != at::kSparse ? at::kFloat : dtype);
      if (!is_weight(position)) {
        widen(found.inputs, dtype);
        if (!is_parameter(tensor)) widen(found.computed, dtype);
      }
      found.any = true;
      return at::Tensor();
    });
    return found;
  }

  void govern(const PrecisionPolicy& policy, const c10::OperatorHandle& op, c10::DispatchKeySet below, Stack* stack) {
    const PrecisionRule& rule = policy.rule(slot_);
    const size_t base = stack->size() - op.schema().arguments().size();
    const Found found = look(*stack, base);
    if (rule.checks_index && !found.traced) check_index(op, *stack, base);
    const bool has_own = has_own_dtype(*stack, base), of_sparse = found.sparse != at::kByte;
    int64_t inserted = 0;
    c10::ScalarType computed = found.has_double ? at::kDouble : found.widest;
    const bool is_ruled = rule.through || rule.to[0] || rule.to[1] || rule.to[2] || rule.output || any(rule.inputs) || any(rule.outputs) || (rule.widest && found.mixed);
    const bool is_governed = !of_sparse || (is_matrix_ && (found.mixed || found.sparse != found.widest));
    const bool casts = found.any && !found.is_left && !has_own && is_ruled && is_governed;
    std::optional<AsWhole> guard;
    // Complex numbers are left as they are, also where torch makes a convolution of them of real ones; values have their sparse tensor's dtype
    if (casts || rule.whole || has_own || of_sparse || found.is_complex) guard.emplace(device_);
    if (casts) {
      bool is_first = true;
      each(*stack, base, [&](const at::Tensor& tensor, int position) {
        if (!is_eligible(tensor)) return at::Tensor();
        const c10::ScalarType to = target(rule, tensor.scalar_type(), position, found);
        if (is_first) computed = to;
        is_first = false;
        if (rule.through && !of_sparse && tensor.scalar_type() != dtype_of(rule.through)) {
          inserted += 2;
          return cast(cast(tensor, dtype_of(rule.through)), to);
        }
        if (to == tensor.scalar_type()) return at::Tensor();
        if (policy.frozen && is_kept(tensor, position, found)) return policy.kept_casts.get(tensor, to, inserted);
        inserted++;
        return cast(tensor, to);
      });
    }
    const auto run = [&] { guard ? op.callBoxed(stack) : op.redispatchBoxed(below, stack); };  // the latter: what it is made of is governed too
    if (policy.retries)
      retrying(policy, op, stack, base, run);
    else
      run();
    if (casts && !of_sparse) inserted += finish(rule, stack, stack->size() - op.schema().returns().size(), found.widest);
    if (!found.any && !found.has_double) return;
    if (found.traced) return policy.count(slot_, Counted::traced);
    policy.count(slot_, Counted::calls + kind_of(computed));
    if (inserted) policy.count(slot_, Counted::casts, inserted);
  }

  static bool any(const uint8_t (&dtypes)[most_listed]) { return std::any_of(dtypes, dtypes + most_listed, [](uint8_t one) { return one; }); }

  // Whether this is a weight, in a call that does not record its cast. Only of operators whose results are new memory.
  bool is_kept(const at::Tensor& tensor, int position, const Found& found) const {
    if (!is_matrix_ || found.traced || at::tracer::impl::is_dispatch_enabled() || c10::impl::TorchDispatchModeTLS::any_modes_set()) return false;
    if (c10::GradMode::is_enabled() && tensor.requires_grad()) return false;
    return is_weight(position) && !tensor._fw_grad(0).defined();
  }

  // A dtype that the call itself names is the caller's word.
  bool has_own_dtype(const Stack& stack, size_t base) const { return dtype_ >= 0 && !stack[base + size_t(dtype_)].isNone(); }

  c10::ScalarType target(const PrecisionRule& rule, c10::ScalarType dtype, int position, const Found& found) const {
    if (found.sparse != at::kByte) return found.sparse;
    if (const uint8_t listed = rule.inputs[std::min(position, most_listed - 1)]) return dtype_of(listed);
    if (rule.widest == 2) return found.computed != at::kByte ? found.computed : found.inputs != at::kByte ? found.inputs : found.widest;
    if (rule.widest) return found.widest;
    const uint8_t to = rule.to[kind_of(dtype)];
    return to ? dtype_of(to) : dtype;
  }

  // Casts the outputs; returns how many.
  int64_t finish(const PrecisionRule& rule, Stack* stack, size_t base, c10::ScalarType widest) const {
    int64_t inserted = 0;
    if (!rule.output && !any(rule.outputs)) return 0;
    for (size_t i = base; i < stack->size(); i++) {
      const uint8_t listed = i - base < most_listed ? rule.outputs[i - base] : 0;
      each_of((*stack)[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || kind_of(tensor.scalar_type()) > 3) return at::Tensor();
        const c10::ScalarType from = tensor.scalar_type();
        const c10::ScalarType to = listed ? dtype_of(listed) : rule.output == origin ? widest : rule.output ? dtype_of(rule.output) : from;
        inserted += to != from;
        return cast(tensor, to);
      });
    }
    return inserted;
  }

  // enable_reduce_precision: what has no kernel for 16 bits is computed in float32, its results have the dtype they would have had.
  template <class Run>
  void retrying(const PrecisionPolicy& policy, const c10::OperatorHandle& op, Stack* stack, size_t base, const Run& run) {
    const Found found = look(*stack, base);
    if (!found.any || found.is_left || found.sparse != at::kByte || !is_16_bit(found.widest)) return run();
    Stack given(stack->begin() + std::ptrdiff_t(base), stack->end());
    std::atomic<bool>& lacks = lacks_[found.widest == at::kHalf];
    if (!lacks.load(std::memory_order_relaxed)) {
      try {
        return run();
      } catch (const c10::Error& error) {
        if (!lacks_kernel(error)) throw;
      }
    }
    lacks.store(true, std::memory_order_relaxed);
    if (policy.retries == 1 && !warned_[found.widest == at::kHalf].exchange(true)) {
      const std::string name = op.schema().name();
      const std::string text = name + " has no kernel for " + c10::toString(found.widest) + " here: it is computed in float32 (enable_reduce_precision)";
      TORCH_CHECK(!warn(text), "a warning that is an error here: ", text);
    }
    stack->resize(base);
    stack->insert(stack->end(), given.begin(), given.end());
    const AsWhole guard(device_);
    int64_t inserted = 0;
    each(*stack, base, [&](const at::Tensor& tensor, int) {
      if (!is_eligible(tensor) || !is_16_bit(tensor.scalar_type())) return at::Tensor();
      inserted++;
      return cast(tensor, at::kFloat);
    });
    op.callBoxed(stack);
    PrecisionRule back{};
    back.output = origin;
    inserted += finish(back, stack, stack->size() - op.schema().returns().size(), found.widest);
    policy.count(slot_, Counted::casts, inserted);
    policy.count(slot_, Counted::again);
  }

  // support_out_of_bound_index: indices are looked at before they are used, on every device.
  void check_index(const c10::OperatorHandle& op, const Stack& stack, size_t base) const {
    if (index_ < 0 || !stack[base + size_t(index_)].isTensor()) return;
    const at::Tensor index = stack[base + size_t(index_)].toTensor();
    const at::Tensor self = stack[base].toTensor();
    if (!index.defined() || index.numel() == 0 || !at::isIntegralType(index.scalar_type(), false)) return;
    int64_t size = self.numel();  // take
    if (dim_ >= 0 && stack[base + size_t(dim_)].isInt() && self.dim()) {
      const int64_t dim = stack[base + size_t(dim_)].toInt();
      if (dim < -self.dim() || dim >= self.dim()) return;  // torch's own error is the better one
      size = self.size(dim);
    } else if (op.schema().name().find("embedding") != std::string::npos) {
      size = self.size(0);
    }
    const auto [least, largest] = at::_ops::aminmax::call(index, std::nullopt, false);
    const int64_t from = least.item<int64_t>(), to = largest.item<int64_t>();
    const int64_t lowest = op.schema().name() == "aten::take" ? -size : 0;  // it counts from the end, too
    TORCH_CHECK_INDEX(
        from >= lowest && to < size, op.schema().name(), ": index ", from < lowest ? from : to, " is out of bounds for a dimension of size ", size,
        " (support_out_of_bound_index)");
  }

  // A torch.autocast decides; what its kernel computed in shows in the result.
  void count_overruled(const PrecisionPolicy& policy, const Stack& stack, const c10::OperatorHandle& op) const {
    const c10::IValue& first = stack[stack.size() - op.schema().returns().size()];
    if (first.isTensor() && first.toTensor().defined())
      policy.count(slot_, Counted::overruled + kind_of(first.toTensor().scalar_type()));
  }

  // The dtypes of a backward pass are those of its forward pass.
  void notice_backward(const PrecisionPolicy& policy, const Stack& stack, const c10::OperatorHandle& op) const {
    const c10::IValue& first = stack[stack.size() - op.schema().arguments().size()];
    if (!first.isTensor() || !first.toTensor().defined() || !first.toTensor().is_floating_point()) return;
    const at::Tensor& tensor = first.toTensor();
    const bool is_traced = tensor.layout() == at::kStrided && tensor.key_set().has(c10::DispatchKey::Python);
    policy.count(slot_, is_traced ? Counted::traced : Counted::backward + kind_of(tensor.scalar_type()));
  }

  int slot_, device_, dtype_ = -1, index_ = -1, dim_ = -1;
  bool is_matrix_, writes_, has_statistics_ = false;
  std::vector<int> inputs_, weights_;  // places of arguments; places of weights among those that are tensors
  std::optional<c10::KernelFunction> before_;
  std::atomic<bool> lacks_[2]{}, warned_[2]{};  // for bfloat16, for float16
};

bool is_functional(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments())
    if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
  for (const auto& value : schema.returns())
    if (value.alias_info() && value.alias_info()->isWrite()) return false;
  return !schema.arguments().empty() && !schema.returns().empty();
}

}  // namespace
}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// Registers the operators of these names, in this order, at a device's autocast key: all overloads that make new tensors, and those that write to
// sparse ones. `matrix`: those that multiply matrices: casts of their frozen weights may be kept, and they take the dtype of a sparse factor.
// "" or what went wrong.
MSCTX_API const char* msctx_precision_install(int device, const char* const* names, const uint8_t* matrix, int count) {
  return problem_of([&] {
    const Silent silent;
    const c10::DispatchKey key = keys_of_devices[device];
    std::map<std::string, int> slots;
    for (int i = 0; i < count; i++) slots[std::strstr(names[i], "::") ? names[i] : std::string("aten::") + names[i]] = i;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto slot = slots.find(name.name);
      if (slot == slots.end()) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op) continue;
      const bool writes = !is_functional(op->schema());
      if (writes && (!op->hasKernelForDispatchKey(sparse_keys_of_devices[device]) || op->hasKernelForDispatchKey(key))) continue;
      const auto before = op->hasKernelForDispatchKey(key) ? std::optional(in_table(*op, key)) : std::nullopt;
      auto governed = std::make_unique<Governed>(*op, slot->second, device, matrix[slot->second] != 0, writes, before);
      implement(*op, key, torch::CppFunction::makeFromBoxedFunctor(std::move(governed)));
    }
    return "";
  });
}

// Pauses the policies of this thread, or lets them go on.
MSCTX_API void msctx_precision_pause(int on) { steps = on != 0; }
