// Registration with PyTorch's dispatcher: once a process and for good.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <optional>

namespace msctx::glue {

constexpr const char* mark = "msctx native core";  // what the dispatcher's own tables say of our kernels

// The kernel that was in force at a key before ours, if there was one.
struct Before {
  std::optional<c10::SafeKernelFunction> kernel;
  // Calls it; false where there is none, or where it has been taken away since: then torch's own is to be called.
  bool call(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) const;
};

Before before(const c10::OperatorHandle&, c10::DispatchKey);
// The same where it is another library's, and not torch's own kernel of a back end.
Before anothers(const c10::OperatorHandle&, c10::DispatchKey);
torch::Library& library(const char* ns, c10::DispatchKey);

// That a kernel is overridden is what is meant while one of these lives.
class Silent {
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

}  // namespace msctx::glue
