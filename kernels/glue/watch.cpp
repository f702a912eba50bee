// The watched weights. Python registers a model's, and takes them away when its module dies.
#include "glue/watch.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "msctx/api.h"
#include "msctx/call.h"
#include "msctx/process.h"
#include "msctx/python.h"

namespace msctx::glue {
namespace {

// A weight is known by its storage and its place in it: a library may lay many of them into one.
using Spot = std::pair<const void*, int64_t>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;  // no other storage gets its address as long as this is here
struct Module {
  const std::string* path;
  int64_t model;
};
struct WatchedWeight {
  WeakStorage storage;
  std::vector<Module> modules;  // that share it
  std::string dtype;            // "": it is computed from others each time
  bool was_gone = false;        // when the modules were looked at last

  bool is_newly_gone() const { return !was_gone && storage.expired(); }
};
std::mutex& watch_lock = fork_safe_mutex();
struct Stranger {
  WeakStorage storage;
  int64_t met = 0;
};
struct Watched {
  std::map<Spot, WatchedWeight> by_place;
  std::unordered_map<std::string, std::set<Spot>> by_shape;
  std::unordered_set<std::string> paths;
  std::unordered_set<int64_t> models;    // of the contexts that are open
  std::map<Spot, Stranger> strangers;  // weights that nobody has named
  uint64_t met = 0;                      // how often such were met
};
Watched& watched = immortal<Watched>();
std::atomic<bool> any{false};
std::atomic<PythonFunction> look{nullptr};
constexpr size_t kMostStrangers = 4096;

void set_any() { any.store(!watched.by_place.empty() && !watched.models.empty(), std::memory_order_relaxed); }

const std::string* path_of(const WatchedWeight& weight) {
  for (const Module& module : weight.modules)
    if (watched.models.count(module.model)) return module.path;
  return nullptr;
}

enum class Search { none, if_due, now };

// Whether to look for it at the watched modules: one may have got it since. A module may also be given a weight later on that was met
// before, so that it is looked for again after 1, 2, 4 … calls; and soon after a named weight has gone, whose module must have another.
// To ask whether one has gone costs a look at each, so that it is asked once for every 32 of them.
Search search_for(const Spot& place, const at::Tensor& weight) {
  if (!(weight.is_view() ? weight._base().is_leaf() : weight.is_leaf())) return Search::none;
  const auto is_gone = [](const auto& one) { return one.second.is_newly_gone(); };
  if (++watched.met % (watched.by_place.size() / 32 + 1) == 0 && std::ranges::any_of(watched.by_place, is_gone)) return Search::now;
  if (watched.strangers.size() >= kMostStrangers) {
    std::erase_if(watched.strangers, [](const auto& one) { return one.second.storage.expired(); });
    if (watched.strangers.size() > kMostStrangers / 2) watched.strangers.clear();  // to look for such at each new one would cost too much
  }
  Stranger& stranger = watched.strangers.try_emplace(place, Stranger{WeakStorage(weight.storage().getWeakStorageImpl())}).first->second;
  const int64_t met = ++stranger.met;
  return (met & (met - 1)) == 0 ? Search::if_due : Search::none;
}

}  // namespace

const std::string* module_of(const at::Tensor& weight, bool by_shape) {
  if (!any.load(std::memory_order_relaxed)) return nullptr;
  std::unique_lock<std::mutex> guard(watch_lock);
  const Spot place{weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), weight.storage_offset()};
  auto found = watched.by_place.find(place);
  if (found == watched.by_place.end()) {
    if (const Search search = search_for(place, weight); search != Search::none) {
      guard.unlock();
      call_python(look.load(), 0, "(i)", int(search == Search::now));
      guard.lock();
      found = watched.by_place.find(place);
    }
  }
  if (found != watched.by_place.end()) return path_of(found->second);
  if (!by_shape) return nullptr;
  const at::IntArrayRef sizes = weight.sizes();  // cast, gathered or computed, it has another storage
  const auto same = watched.by_shape.find(msctx::joined(sizes.data(), sizes.size()));
  if (same == watched.by_shape.end()) return nullptr;
  const WatchedWeight* only = nullptr;
  for (const Spot& one : same->second) {
    const WatchedWeight& candidate = watched.by_place.at(one);
    if (!path_of(candidate)) continue;
    if (only) return nullptr;
    only = &candidate;
  }
  // A weight of another model may have the shape, too: one that stands for itself is not the watched one.
  const bool stands_for_itself = weight.is_leaf() && !weight.is_view();
  const bool own = only && stands_for_itself && only->dtype == c10::toString(weight.scalar_type()) && !only->storage.expired();
  return own || !only ? nullptr : path_of(*only);
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
MSCTX_API int msctx_watch(void* storage, int64_t offset, const char* shape, const char* dtype, const char* path, int64_t model) try {
  auto alive = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(static_cast<c10::StorageImpl*>(storage));
  const std::lock_guard<std::mutex> guard(watch_lock);
  const Spot place{storage, offset};
  const Module module{&*watched.paths.emplace(path).first, model};
  // What stands in by_place has a path, and what stands in by_shape stands in by_place, also where memory ends half way.
  if (const auto found = watched.by_place.find(place); found != watched.by_place.end())
    found->second.modules.push_back(module);
  else
    watched.by_place.try_emplace(place, WatchedWeight{WeakStorage(alive), {module}, name_of_dtype(dtype)});
  set_any();
  watched.strangers.erase(place);
  watched.by_shape[shape].insert(place);
  return 1;
} catch (const std::exception&) {
  return 0;
}

// Takes back what msctx_watch was called with.
MSCTX_API void msctx_unwatch(void* storage, int64_t offset, const char* path, int64_t model) try {
  const std::string module = path;  // nothing below needs memory
  const Spot place{storage, offset};
  const std::lock_guard<std::mutex> guard(watch_lock);
  const auto found = watched.by_place.find(place);
  if (found == watched.by_place.end()) return;
  auto& modules = found->second.modules;
  const auto is_it = [&](const Module& one) { return *one.path == module && one.model == model; };
  if (const auto one = std::find_if(modules.begin(), modules.end(), is_it); one != modules.end()) modules.erase(one);
  if (!modules.empty()) return;
  for (auto same = watched.by_shape.begin(); same != watched.by_shape.end();) {  // modules that share it may see it in several shapes
    same->second.erase(place);
    same = same->second.empty() ? watched.by_shape.erase(same) : std::next(same);
  }
  watched.by_place.erase(found);
  set_any();
} catch (const std::exception&) {
  return;  // no memory: it stays watched, and no other storage gets its address
}

// Whether a context that watches a model is open: else its modules have no names. 0: there was no memory for it.
MSCTX_API int msctx_watch_model(int64_t model, int is_open) try {
  const std::lock_guard<std::mutex> guard(watch_lock);
  if (is_open)
    watched.models.insert(model);
  else
    watched.models.erase(model);
  set_any();
  return 1;
} catch (const std::exception&) {
  return 0;
}

// `function(now)` is called where a weight is met that has no name, and a module may have it; `now`: because a named one is gone.
MSCTX_API void msctx_look_for_weights(msctx::PythonFunction function) { look.store(function); }

// All modules are about to be looked at: what is gone by now is no news afterwards.
MSCTX_API void msctx_watch_looks() {
  const std::lock_guard<std::mutex> guard(watch_lock);
  for (auto& [_, weight] : watched.by_place) weight.was_gone = weight.storage.expired();
}
