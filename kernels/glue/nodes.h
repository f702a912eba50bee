// What is kept of the nodes that forward passes make, by their numbers: a thread numbers its own, and backward passes may run elsewhere.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "msctx/process.h"

namespace msctx::glue {

template <class Value>
class ByNode {
 public:
  // Of the node that this thread makes next; the last call counts.
  void remember(int64_t number, Value value) {
    thread_local std::unordered_map<const ByNode*, std::shared_ptr<Kept>> mine;
    auto& kept = mine[this];
    if (!kept) {
      const std::lock_guard<std::mutex> guard(lock_);
      auto& slot = of_threads_[at::RecordFunction::currentThreadId()];
      if (!slot) slot = std::make_shared<Kept>(most, std::pair<int64_t, Value>{-1, Value{}});
      kept = slot;
    }
    (*kept)[size_t(number % most)] = {number, value};
  }

  // Of a node that a thread has made; `otherwise` where that is long ago.
  Value find(uint64_t thread, int64_t number, Value otherwise) {
    if (number < 0) return otherwise;
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = of_threads_.find(thread);
    if (found == of_threads_.end()) return otherwise;
    const auto& [kept, value] = (*found->second)[size_t(number % most)];
    return kept == number ? value : otherwise;
  }

 private:
  static constexpr int64_t most = 1 << 16;
  using Kept = std::vector<std::pair<int64_t, Value>>;
  std::mutex& lock_ = fork_safe_mutex();
  std::unordered_map<uint64_t, std::shared_ptr<Kept>> of_threads_;
};

}  // namespace msctx::glue
