// The watched weights. Python sends those of a model whenever they have changed.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "glue/python.h"
#include "glue/tensors.h"
#include "msctx/json.h"

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
  std::string shape, dtype;     // dtype "": it is computed from others each time
};
std::mutex& watch_lock = fork_safe_mutex();
struct Watched {
  std::map<Spot, WatchedWeight> by_place;
  std::unordered_set<std::string> paths;
  std::unordered_set<int64_t> models;  // of the contexts that are open
  size_t met = 0, enough = 1;          // how many weights without a name were met since Python looked; at how many it looks again
};
Watched& watched = immortal<Watched>();
auto& compiled_with = immortal<std::map<Spot, WeakStorage>>();  // parameters, which compiled code makes tensors of its own of
std::atomic<bool> any{false};
std::atomic<PythonFunction> look{nullptr};

void set_any() { any.store(!watched.by_place.empty() && !watched.models.empty(), std::memory_order_relaxed); }

const std::string* path_of(const WatchedWeight& weight) {
  for (const Module& module : weight.modules)
    if (watched.models.count(module.model)) return module.path;
  return nullptr;
}

// Whether a module may have got this weight, which has no name, since Python looked. A named weight that is gone says so: its module must
// have another; that is asked once for every 32 of them. Else more and more must be met where looking changes nothing, until it costs one
// weight for each.
bool is_look_due(const at::Tensor& weight) {
  if (!(weight.is_view() ? weight._base().is_leaf() : weight.is_leaf())) return false;
  if (++watched.met >= watched.enough) return true;
  const auto is_gone = [](const auto& one) { return one.second.storage.expired(); };
  return watched.met % (watched.by_place.size() / 32 + 1) == 0 && std::ranges::any_of(watched.by_place, is_gone);
}

void forget(int64_t model) {
  for (auto& [_, weight] : watched.by_place) std::erase_if(weight.modules, [&](const Module& module) { return module.model == model; });
  std::erase_if(watched.by_place, [](const auto& one) { return one.second.modules.empty(); });
}

}  // namespace

const std::string* module_of(const at::Tensor& weight, bool by_shape) {
  if (!any.load(std::memory_order_relaxed)) return nullptr;
  std::unique_lock<std::mutex> guard(watch_lock);
  const Spot place{storage_of(weight), weight.storage_offset()};
  auto found = watched.by_place.find(place);
  if (found == watched.by_place.end() && is_look_due(weight)) {
    guard.unlock();
    const bool has_changed = call_python(look.load(), 0, "()");
    guard.lock();
    watched.met = 0;
    watched.enough = has_changed ? 1 : std::min(2 * watched.enough, std::max<size_t>(1, watched.by_place.size()));
    found = watched.by_place.find(place);
  }
  if (found != watched.by_place.end()) return path_of(found->second);
  if (!by_shape) return nullptr;
  // Cast, gathered or computed, it has another storage.
  const std::string shape = joined(weight.sizes());
  const WatchedWeight* only = nullptr;
  for (const auto& [_, candidate] : watched.by_place) {
    if (candidate.shape != shape || !path_of(candidate)) continue;
    if (only) return nullptr;
    only = &candidate;
  }
  // A weight of another model may have the shape, too: one that stands for itself is not the watched one.
  const bool stands_for_itself = weight.is_leaf() && !weight.is_view();
  const bool own = only && stands_for_itself && only->dtype == c10::getDtypeNames(weight.scalar_type()).first && !only->storage.expired();
  return own || !only ? nullptr : path_of(*only);
}

bool is_compiled_with(const at::Tensor& weight) {
  const std::lock_guard<std::mutex> guard(watch_lock);
  return compiled_with.contains({storage_of(weight), weight.storage_offset()});
}

}  // namespace msctx::glue

using namespace msctx::glue;

// The weights of a model, in the place of those that it had: lists of storage, offset, shape, dtype and path, as JSON. The storages are
// alive now.
MSCTX_API void msctx_watch(int64_t model, const char* weights) {
  const Json given = Json::of(weights);
  const std::lock_guard<std::mutex> guard(watch_lock);
  forget(model);
  for (const auto& [_, weight] : given.members) {
    auto* const storage = reinterpret_cast<c10::StorageImpl*>(weight.at(0).integer());
    const Spot place{storage, weight.at(1).integer()};
    const WeakStorage held(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    const auto found = watched.by_place.try_emplace(place, WatchedWeight{held, {}, weight.at(2).text, weight.at(3).text}).first;
    found->second.modules.push_back({&*watched.paths.emplace(weight.at(4).text).first, model});
  }
  set_any();
}

// Parameters among the inputs of code that is compiled: lists of storage and offset, as JSON. The storages are alive now.
MSCTX_API void msctx_compiled_with(const char* parameters) {
  const Json given = Json::of(parameters);
  const std::lock_guard<std::mutex> guard(watch_lock);
  std::erase_if(compiled_with, [](const auto& one) { return one.second.expired(); });
  for (const auto& [_, one] : given.members) {
    auto* const storage = reinterpret_cast<c10::StorageImpl*>(one.at(0).integer());
    compiled_with.try_emplace({storage, one.at(1).integer()}, c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  }
}

// Whether a context that watches a model is open: else its modules have no names.
MSCTX_API void msctx_watch_model(int64_t model, int is_open) {
  const std::lock_guard<std::mutex> guard(watch_lock);
  watched.models.erase(model);
  if (is_open) watched.models.insert(model);
  set_any();
}

// `function()` is called where a weight is met that has no name, and a module may have it. Its answer: whether the names have changed.
MSCTX_API void msctx_look_for_weights(PythonFunction function) { look.store(function); }
