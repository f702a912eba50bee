// Registration with PyTorch's dispatcher: once a process and for good.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>

#include "msctx/process.h"

namespace msctx::glue {

constexpr const char* mark = "msctx native core";  // how the dispatcher's own tables show our kernels

// What the dispatcher calls at a key now. A copy can be called as long as the process lives, also where its library takes it away.
const c10::KernelFunction& in_table(const c10::OperatorHandle&, c10::DispatchKey);
torch::Library& library(const std::string& ns, c10::DispatchKey);
// Registers a kernel of ours.
void implement(const c10::OperatorHandle&, c10::DispatchKey, torch::CppFunction kernel);

// Kernels of ours, and whether the dispatcher still calls them: another library may register over them at any time. They are registered by
// TORCH_FN: code of their own distinguishes them from others.
class OurKernels {
 public:
  // Call it once the kernels are registered.
  void watch(const c10::OperatorHandle&, c10::DispatchKey);
  // "" while all of them are called, else whose kernel is in the place of one. Any thread may ask, as often as it likes.
  std::string problem();

 private:
  struct Kernel {
    c10::OperatorHandle op;
    c10::DispatchKey key;
    c10::KernelFunction ours;
  };
  std::vector<Kernel> kernels_;
  std::mutex& lock_ = fork_safe_mutex();  // of getComputedKernelForDispatchKey
};

// That a kernel is overridden is what is meant while one of these lives.
class Silent {
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

}  // namespace msctx::glue
