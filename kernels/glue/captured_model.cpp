// Whether a model is as it was when a graph was captured from it. Dynamo has a guard for each attribute, weight and absent hook of each
// module, some thousands; here one walk compares the dictionaries that hold them. Python keeps what they point to: keys and constants. All
// functions of Python's are in its stable interface, and are called under its lock.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "glue/python.h"
#include "msctx/interface.h"

MSCTX_OF_PYTHON(int, PyDict_Next, void*, ptrdiff_t*, void**, void**);
MSCTX_OF_PYTHON(void*, PyObject_GenericGetDict, void*, void*);
MSCTX_OF_PYTHON(void*, PyObject_Type, void*);

namespace msctx::glue {
namespace {

struct Item {
  void *key, *value;
  bool operator==(const Item&) const = default;
};

// An object that is a dictionary, or has one of attributes.
struct Holder {
  void* object;
  bool has_attributes;
  void* type = nullptr;
  size_t end = 0;  // of its items
};

// What Dynamo compares of a tensor. The object lives as long as the tensor.
class CapturedTensor {
 public:
  explicit CapturedTensor(at::TensorImpl* impl)
      : impl_(c10::intrusive_ptr<at::TensorImpl>::unsafe_reclaim_from_nonowning(impl)),
        keys_(impl->key_set()), dtype_(impl->dtype()), device_(impl->device()), requires_grad_(impl->requires_grad()),
        sizes_(impl->sizes()), strides_(impl->strides()) {}
  bool is_same() const {
    if (impl_.expired()) return false;
    const at::TensorImpl& now = *impl_._unsafe_get_target();
    return now.key_set() == keys_ && now.dtype() == dtype_ && now.device() == device_ && now.requires_grad() == requires_grad_ &&
           now.sizes() == sizes_ && now.strides() == strides_;
  }

 private:
  c10::weak_intrusive_ptr<at::TensorImpl> impl_;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  bool requires_grad_;
  c10::DimVector sizes_, strides_;
};

void* python_type_of(void* object) {
  void* type = PyObject_Type(object);
  Py_DecRef(type);  // the object has it
  return type;
}

template <class Visit>
bool all_items(const Holder& of, const Visit& visit) {
  void* dictionary = of.has_attributes ? PyObject_GenericGetDict(of.object, nullptr) : of.object;
  bool is_same = true;
  Item found;
  for (ptrdiff_t place = 0; is_same && PyDict_Next(dictionary, &place, &found.key, &found.value);) is_same = visit(found);
  if (of.has_attributes) Py_DecRef(dictionary);
  return is_same;
}

class CapturedModel {
 public:
  // Each holder must be the first, or a value of one before it: nothing is read that may be gone.
  CapturedModel(const int64_t* holders, int64_t count, const int64_t* weights, int64_t weight_count) : local_(keys_of_thread()) {
    for (int64_t i = 0; i < count; ++i) {
      Holder& holder = holders_.emplace_back(Holder{reinterpret_cast<void*>(holders[2 * i]), holders[2 * i + 1] != 0});
      holder.type = python_type_of(holder.object);
      all_items(holder, [&](const Item& found) { return items_.push_back(found), true; });
      holder.end = items_.size();
    }
    for (int64_t i = 0; i < weight_count; ++i) weights_.emplace_back(reinterpret_cast<at::TensorImpl*>(weights[i]));
  }

  bool holds() const {
    auto next = items_.begin();
    for (size_t i = 0; i < holders_.size(); ++i) {
      const Holder& holder = holders_[i];
      __builtin_prefetch(holders_[std::min(i + 16, holders_.size() - 1)].object);
      const auto end = items_.begin() + ptrdiff_t(holder.end);
      if (python_type_of(holder.object) != holder.type) return false;
      if (!all_items(holder, [&](const Item& found) { return next != end && *next++ == found; }) || next != end) return false;
    }
    return keys_of_thread() == local_ && std::ranges::all_of(weights_, [](const CapturedTensor& one) { return one.is_same(); });
  }

 private:
  // Modes of this thread, such as inference, are part of what Dynamo compares of a tensor.
  static std::pair<c10::DispatchKeySet, c10::DispatchKeySet> keys_of_thread() {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    return {local.included_, local.excluded_};
  }

  std::vector<Holder> holders_;
  std::vector<Item> items_;
  std::vector<CapturedTensor> weights_;
  std::pair<c10::DispatchKeySet, c10::DispatchKeySet> local_;
};

}  // namespace
}  // namespace msctx::glue

using msctx::glue::CapturedModel;
MSCTX_API void* msctx_captured_model(const int64_t* holders, int64_t count, const int64_t* weights, int64_t weight_count) {
  return new CapturedModel(holders, count, weights, weight_count);
}
MSCTX_API int msctx_captured_model_holds(const void* model) { return static_cast<const CapturedModel*>(model)->holds(); }
MSCTX_API void msctx_captured_model_delete(const void* model) { delete static_cast<const CapturedModel*>(model); }
