// The streams of the device far: see fake_device.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

// The default stream does its work when it is given out. A copy to pinned memory that another stream is to make without blocking
// is made when somebody waits for that stream; until then its target holds no numbers. It never gets any where the source may not
// have been computed yet (the stream has not waited for the default one) or was given to somebody else (freed, and not recorded).
struct Streams {
  struct Late {
    const void* from;
    void* to;
    size_t bytes;
    c10::weak_intrusive_ptr<c10::StorageImpl> source, target;
    c10::intrusive_ptr<c10::StorageImpl> recorded;
  };
  struct Other {
    uint64_t waited = 0;  // for so much of the default stream's work
    std::vector<Late> late;
  };
  struct Event {
    c10::StreamId stream;
    uint64_t work;
    std::chrono::steady_clock::time_point time;
  };
  static inline thread_local c10::StreamId current = 0;
  std::mutex lock;
  std::atomic<uint64_t> work{0};
  std::map<c10::StreamId, Other> others;

  static const c10::Storage& of_cpu(const at::Tensor& far) {
    return *static_cast<c10::Storage*>(far.storage().data_ptr().get_context());
  }

  void copy(const at::Tensor& from, const at::Tensor& to) {
    std::memset(to.mutable_data_ptr(), 0xFF, to.nbytes());
    const std::lock_guard<std::mutex> guard(lock);
    Other& other = others[current];
    if (other.waited != work) return;
    auto source = of_cpu(from).getWeakStorageImpl(), target = to.storage().getWeakStorageImpl();
    other.late.push_back({from.const_data_ptr(), to.mutable_data_ptr(), to.nbytes(), std::move(source), std::move(target), {}});
  }

  void record(const at::Tensor& used, c10::StreamId stream) {
    const std::lock_guard<std::mutex> guard(lock);
    for (Late& late : others[stream].late)
      if (auto source = late.source.lock(); source.get() == of_cpu(used).unsafeGetStorageImpl()) late.recorded = std::move(source);
  }

  void wait(c10::StreamId who, const Event& event) {
    finish(event.stream);
    const std::lock_guard<std::mutex> guard(lock);
    if (who != 0 && event.stream == 0) others[who].waited = std::max(others[who].waited, event.work);
  }

  void finish(c10::StreamId stream) {
    std::vector<Late> done;
    {
      const std::lock_guard<std::mutex> guard(lock);
      done.swap(others[stream].late);
    }
    for (Late& late : done)
      if (auto source = late.source.lock(), target = late.target.lock(); source && target) std::memcpy(late.to, late.from, late.bytes);
  }

  void finish_all() {
    std::vector<c10::StreamId> all;
    {
      const std::lock_guard<std::mutex> guard(lock);
      for (const auto& [stream, other] : others) all.push_back(stream);
    }
    for (const auto stream : all) finish(stream);
  }
};
auto& streams = *new Streams;

}  // namespace
