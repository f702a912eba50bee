// The watched weights. Python registers a model's, and takes them away when its module dies.
#include "glue/watch.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "msctx/api.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

struct Weight {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // no other storage gets its address as long as this is here
  std::vector<const std::string*> paths;              // of the modules that share it
};
std::mutex& lock = fork_safe_mutex();
struct Watched {
  std::unordered_map<const void*, Weight> by_storage;
  std::unordered_map<std::string, std::unordered_set<const void*>> by_shape;
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
  const std::lock_guard<std::mutex> guard(lock);
  const void* storage = weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (const auto found = all.by_storage.find(storage); found != all.by_storage.end()) return found->second.paths.front();
  std::string shape;
  for (const int64_t size : weight.sizes()) shape += (shape.empty() ? "" : "x") + std::to_string(size);
  const auto same = all.by_shape.find(shape);  // cast or gathered: another storage
  if (same == all.by_shape.end() || same->second.size() != 1) return nullptr;
  return all.by_storage.at(*same->second.begin()).paths.front();
}

}  // namespace msctx::glue

using namespace msctx::glue;

// `storage` is alive now.
MSCTX_API void msctx_watch(void* storage, const char* shape, const char* path) {
  auto alive = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(static_cast<c10::StorageImpl*>(storage));
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(lock);
  auto [found, added] = all.by_storage.try_emplace(storage, Weight{c10::weak_intrusive_ptr<c10::StorageImpl>(alive), {}});
  found->second.paths.push_back(&*all.paths.emplace(path).first);
  all.by_shape[shape].insert(storage);
  any.store(true, std::memory_order_relaxed);
}

// Takes back what msctx_watch was called with.
MSCTX_API void msctx_unwatch(void* storage, const char* shape, const char* path) {
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = all.by_storage.find(storage);
  if (found == all.by_storage.end()) return;
  auto& paths = found->second.paths;
  if (const auto one = std::find(paths.begin(), paths.end(), &*all.paths.emplace(path).first); one != paths.end()) paths.erase(one);
  if (!paths.empty()) return;
  all.by_storage.erase(found);
  if (const auto same = all.by_shape.find(shape); same != all.by_shape.end()) {
    same->second.erase(storage);
    if (same->second.empty()) all.by_shape.erase(same);
  }
  any.store(!all.by_storage.empty(), std::memory_order_relaxed);
}
