// The watched weights. Python registers a model's, and takes them away when its module dies.
#include "glue/watch.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "msctx/api.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

// A weight is known by its storage and its place in it: a library may lay many of them into one.
using Place = std::pair<const void*, int64_t>;
struct Weight {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // no other storage gets its address as long as this is here
  std::vector<const std::string*> paths;              // of the modules that share it
  std::string dtype;                                  // "": it is computed from others each time
};
std::mutex& lock = fork_safe_mutex();
struct Watched {
  std::map<Place, Weight> by_place;
  std::unordered_map<std::string, std::set<Place>> by_shape;
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
  const Place place{weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), weight.storage_offset()};
  if (const auto found = all.by_place.find(place); found != all.by_place.end()) return found->second.paths.front();
  std::string shape;  // cast, gathered or computed, it has another storage
  for (const int64_t size : weight.sizes()) shape += (shape.empty() ? "" : "x") + std::to_string(size);
  const auto same = all.by_shape.find(shape);
  if (same == all.by_shape.end() || same->second.size() != 1) return nullptr;
  const Weight& only = all.by_place.at(*same->second.begin());
  // A weight of another model may have the shape, too: one that stands for itself is not the watched one.
  const bool own = weight.is_leaf() && !weight.is_view() && only.dtype == c10::toString(weight.scalar_type()) && !only.storage.expired();
  return own ? nullptr : only.paths.front();
}

}  // namespace msctx::glue

using namespace msctx::glue;

namespace {
// As C++ spells it.
std::string name_of_dtype(const std::string& python) {
  return python == "float32" ? "Float" : python == "float64" ? "Double" : python == "float16" ? "Half" : python == "bfloat16" ? "BFloat16" : "";
}
}  // namespace

// `storage` is alive now. 0: there was no memory for it.
MSCTX_API int msctx_watch(void* storage, int64_t offset, const char* shape, const char* dtype, const char* path) try {
  auto alive = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(static_cast<c10::StorageImpl*>(storage));
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(lock);
  const Place place{storage, offset};
  const std::string* module = &*all.paths.emplace(path).first;
  // What stands in by_place has a path, and what stands in by_shape stands in by_place, also where memory ends half way.
  if (const auto found = all.by_place.find(place); found != all.by_place.end())
    found->second.paths.push_back(module);
  else
    all.by_place.try_emplace(place, Weight{c10::weak_intrusive_ptr<c10::StorageImpl>(alive), {module}, name_of_dtype(dtype)});
  any.store(true, std::memory_order_relaxed);
  all.by_shape[shape].insert(place);
  return 1;
} catch (const std::exception&) {
  return 0;
}

// Takes back what msctx_watch was called with.
MSCTX_API void msctx_unwatch(void* storage, int64_t offset, const char* path) try {
  const std::string module = path;  // nothing below needs memory
  const Place place{storage, offset};
  Watched& all = watched();
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = all.by_place.find(place);
  if (found == all.by_place.end()) return;
  auto& paths = found->second.paths;
  const auto is_it = [&](const std::string* one) { return *one == module; };
  if (const auto one = std::find_if(paths.begin(), paths.end(), is_it); one != paths.end()) paths.erase(one);
  if (!paths.empty()) return;
  for (auto same = all.by_shape.begin(); same != all.by_shape.end();) {  // modules that share it may see it in several shapes
    same->second.erase(place);
    same = same->second.empty() ? all.by_shape.erase(same) : std::next(same);
  }
  all.by_place.erase(found);
  any.store(!all.by_place.empty(), std::memory_order_relaxed);
} catch (const std::exception&) {
  return;  // no memory: it stays watched, and no other storage gets its address
}
