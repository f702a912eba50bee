// What is kept of the nodes that forward passes make, by their numbers: a thread numbers its own, and backward passes may run elsewhere.
#pragma once

#include <ATen/record_function.h>

#include <deque>
#include <unordered_map>
#include <utility>

#include "msctx/process.h"

namespace msctx::glue {

template <class Value>
class ByNode {
 public:
  // Of the node that this thread makes next; the last call counts.
  void remember(int64_t number, Value value) {
    const std::lock_guard<std::mutex> guard(lock_);
    const uint64_t thread = at::RecordFunction::currentThreadId();
    const auto [found, is_new] = of_threads_.try_emplace(thread);
    if (is_new) {
      order_.push_back(thread);
      if (order_.size() > most_threads) of_threads_.erase(order_.front()), order_.pop_front();
    }
    auto& kept = of_threads_[thread];
    if (kept.latest.size() >= most) kept.before = std::exchange(kept.latest, {});
    kept.latest[number] = value;
  }

  // Of a node that a thread has made; `otherwise` where that is long ago.
  Value find(uint64_t thread, int64_t number, Value otherwise) {
    if (number < 0) return otherwise;
    const std::lock_guard<std::mutex> guard(lock_);
    const auto kept = of_threads_.find(thread);
    if (kept == of_threads_.end()) return otherwise;
    for (const auto* one : {&kept->second.latest, &kept->second.before})
      if (const auto found = one->find(number); found != one->end()) return found->second;
    return otherwise;
  }

 private:
  static constexpr size_t most = 1 << 15, most_threads = 256;  // nodes of a thread, twice; threads
  struct Kept {
    std::unordered_map<int64_t, Value> latest, before;
  };
  std::mutex& lock_ = fork_safe_mutex();
  std::unordered_map<uint64_t, Kept> of_threads_;
  std::deque<uint64_t> order_;
};

}  // namespace msctx::glue
