// Registration with PyTorch's dispatcher.
#include "glue/registered.h"

#include <string_view>
#include <vector>

namespace msctx::glue {

bool Before::call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
  if (!kernel) return false;
  try {
    kernel->callBoxed(op, keys, stack);
    return true;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what()).find("SafeKernelFunction has been invalidated") == std::string_view::npos) throw;
    return false;
  }
}

Before before(const c10::OperatorHandle& op, c10::DispatchKey key) {
  if (!op.hasKernelForDispatchKey(key)) return {};
  return {op.getComputedKernelForDispatchKey(key)};
}

Before anothers(const c10::OperatorHandle& op, c10::DispatchKey key) {
  // Those that torch generates say: registered at …/build/aten/src/ATen/RegisterCUDA_3.cpp:123
  constexpr std::string_view torchs = "aten/src/ATen/Register";
  Before found = before(op, key);
  const bool is_torchs = found.kernel && found.kernel->debug().find(torchs) != std::string::npos;
  return is_torchs ? Before{} : found;
}

// One Library for each namespace and key; never destroyed: to un-register while threads run is not safe.
torch::Library& library(const char* ns, c10::DispatchKey key) {
  static auto* all = new std::vector<std::pair<std::pair<std::string, c10::DispatchKey>, torch::Library*>>;
  for (auto& [id, found] : *all)
    if (id.first == ns && id.second == key) return *found;
  all->push_back({{ns, key}, new torch::Library(torch::Library::IMPL, ns, key, mark, 0)});
  return *all->back().second;
}

}  // namespace msctx::glue
