// Registration with PyTorch's dispatcher.
#include "glue/registered.h"

#include <map>

// The dispatcher lends its table to the classes of this template. Each call of an operator reads the same entry in the same way, also
// while another library registers a kernel. What torch offers, getComputedKernelForDispatchKey, adds to a list of the kernel's without a
// lock, and never takes it away: it is asked for the name of another library's kernel alone.
namespace msctx::glue {
struct Entry;
}
template <>
class c10::TypedOperatorHandle<msctx::glue::Entry> final {
 public:
  static const c10::KernelFunction& at(const c10::OperatorHandle& op, c10::DispatchKey key) {
    return op.operatorDef_->op.lookup(c10::DispatchKeySet(key));
  }
};

namespace msctx::glue {

const c10::KernelFunction& in_table(const c10::OperatorHandle& op, c10::DispatchKey key) { return c10::TypedOperatorHandle<Entry>::at(op, key); }

void OurKernels::watch(const c10::OperatorHandle& op, c10::DispatchKey key) {
  const std::string found = op.getComputedKernelForDispatchKey(key).debug();
  TORCH_CHECK(found.find(mark) != std::string::npos, op.schema().name(), " is served by another kernel (", found, ")");
  kernels_.push_back({op, key, in_table(op, key)});
}

std::string OurKernels::problem() {
  for (const Kernel& kernel : kernels_) {
    if (in_table(kernel.op, kernel.key)._equalsBoxedAndUnboxed(kernel.ours)) continue;
    const std::lock_guard<std::mutex> guard(lock_);
    const std::string name = kernel.op.getComputedKernelForDispatchKey(kernel.key).debug();
    return kernel.op.schema().name() + " is served by another library's kernel (" + name + ")";
  }
  return "";
}

// One Library for each namespace and key; never destroyed: to un-register while threads run is not safe.
torch::Library& library(const std::string& ns, c10::DispatchKey key) {
  static auto& all = immortal<std::map<std::pair<std::string, c10::DispatchKey>, torch::Library>>();
  return all.try_emplace({ns, key}, torch::Library::IMPL, ns, key, mark, 0).first->second;
}

void implement(const c10::OperatorHandle& op, c10::DispatchKey key, torch::CppFunction kernel) {
  const std::string full = c10::toString(op.operator_name()), ns = full.substr(0, full.find("::"));
  library(ns, key).impl(full.substr(ns.size() + 2).c_str(), std::move(kernel));
}

}  // namespace msctx::glue
