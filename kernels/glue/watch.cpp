// The watched weights. Python registers a model's, and takes them away when its module dies.
#include "glue/watch.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "msctx/api.h"

namespace msctx::glue {
namespace {

struct Watched {
  std::mutex lock;
  std::unordered_map<const void*, const std::string*> by_storage;
  std::unordered_map<std::string, std::unordered_map<const void*, const std::string*>> by_shape;
  std::unordered_set<std::string> paths;
};
Watched& watched() {
  static auto* all = new Watched;
  return *all;
}
std::atomic<bool> any{false};

}  // namespace

const std::string* module_of(const at::Tensor& weight) {
  if (!any.load(std::memory_order_relaxed)) return nullptr;
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(all.lock);
  const void* storage = weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (const auto found = all.by_storage.find(storage); found != all.by_storage.end()) return found->second;
  std::string shape;
  for (const int64_t size : weight.sizes()) shape += (shape.empty() ? "" : "x") + std::to_string(size);
  const auto same = all.by_shape.find(shape);  // cast or gathered: another storage
  return same != all.by_shape.end() && same->second.size() == 1 ? same->second.begin()->second : nullptr;
}

}  // namespace msctx::glue

using namespace msctx::glue;

MSCTX_API void msctx_watch(const void* storage, const char* shape, const char* path) {
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(all.lock);
  const std::string* kept = &*all.paths.emplace(path).first;
  all.by_storage[storage] = kept;
  all.by_shape[shape][storage] = kept;
  any.store(true, std::memory_order_relaxed);
}

MSCTX_API void msctx_unwatch(const void* storage, const char* shape) {
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(all.lock);
  all.by_storage.erase(storage);
  if (const auto same = all.by_shape.find(shape); same != all.by_shape.end()) same->second.erase(storage);
  any.store(!all.by_storage.empty(), std::memory_order_relaxed);
}
