// The kept weights: by storage, place and problem; the least recently used go first.
#include "glue/kept_weights.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <type_traits>
#include <unordered_map>

#include "glue/scratch.h"
#include "msctx/process.h"

namespace msctx::glue {

struct KeptWeight {
  const size_t bytes;
  void* const data;
  const KeptTensor of_torch;  // or `data`
  Fingerprint print{};  // of what it was made of
  // The last policy under which the bytes were looked at, and where they were: what frozen_weights trusts.
  std::atomic<int64_t> checked_under{0};
  std::atomic<const void*> checked_at{nullptr};

  explicit KeptWeight(size_t bytes) : bytes(bytes), data(scratch_memory().allocate(nullptr, bytes)) {}
  KeptWeight(KeptTensor made, size_t bytes) : bytes(bytes), data(nullptr), of_torch(std::move(made)) {}
  ~KeptWeight() {
    if (data) scratch_memory().release(nullptr, data);
  }
  KeptWeight(const KeptWeight&) = delete;
  void note_check(const Policy& policy, const void* at) { checked_under = policy.number.load(), checked_at = at; }
  bool is_checked(const Policy& policy, const void* at) const { return checked_under == policy.number && checked_at == at; }
};

namespace {

constexpr size_t most_bytes = size_t(512) << 20;
constexpr size_t most_weights = 1024;

// Where a weight lies and what it is prepared for, in plain data: its bytes are a key.
struct Form {
  const void* storage;
  int64_t offset, strides[5];
  const ConvAlgorithm* algorithm;
  ConvProblem problem;
  int32_t op, number;
};
static_assert(std::has_unique_object_representations_v<Form>, "padding would make two keys of one form");

struct Entry {
  std::string key;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // no other storage gets its address as long as this is here
  std::shared_ptr<KeptWeight> weight;
};
using Entries = std::list<Entry>;

std::mutex& kept_weights_lock = fork_safe_mutex();
struct AllKept {
  Entries entries;  // last used first
  std::unordered_map<std::string, Entries::iterator> by_key;
  size_t bytes = 0;

  // The lock is held. What leaves goes to `gone`, to be freed when it is not.
  void drop(Entries::iterator entry, Entries& gone) {
    bytes -= entry->weight->bytes;
    by_key.erase(entry->key);
    gone.splice(gone.end(), entries, entry);
  }
  void drop_dead(Entries& gone) {
    for (auto entry = entries.begin(); entry != entries.end();) {
      const auto next = std::next(entry);
      if (entry->storage.expired()) drop(entry, gone);
      entry = next;
    }
  }
};
AllKept& kept = immortal<AllKept>();

c10::StorageImpl* impl_of(const at::Tensor& t) { return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

// What the form of a weight depends on: see prepared_size in conv.h.
ConvProblem form_of(const ConvAlgorithm& algorithm, ConvProblem p) {
  p.n = 1;
  for (int i = 0; i < 3 && algorithm.prepared_for_all_sizes; i++) p.in[i] = p.out[i] = 1;
  return p;
}

std::string key_of(const at::Tensor& weight, const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, int form) {
  Form key{impl_of(weight), weight.storage_offset(), {}, &algorithm, form_of(algorithm, p), int32_t(op), form};
  std::ranges::copy(weight.strides(), key.strides);
  return std::string(reinterpret_cast<const char*>(&key), sizeof key);
}

std::shared_ptr<KeptWeight> look_up(const std::string& key) {
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  const auto found = kept.by_key.find(key);
  if (found == kept.by_key.end()) return nullptr;
  kept.entries.splice(kept.entries.begin(), kept.entries, found->second);
  return found->second->weight;
}

// Takes a weight that has changed away; true: nobody else uses its memory.
bool take_away(const std::string& key, const std::shared_ptr<KeptWeight>& weight) {
  Entries gone;
  {
    const std::lock_guard<std::mutex> guard(kept_weights_lock);
    const auto found = kept.by_key.find(key);
    if (found != kept.by_key.end() && found->second->weight == weight) kept.drop(found->second, gone);
  }
  gone.clear();
  const bool alone = weight.use_count() == 1;
  std::atomic_thread_fence(std::memory_order_acquire);  // what the others read, they have read before
  return alone;
}

void keep(const std::string& key, const at::Tensor& of, std::shared_ptr<KeptWeight> weight) {
  auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl_of(of));
  Entries gone, added;
  added.push_back({key, c10::weak_intrusive_ptr<c10::StorageImpl>(storage), std::move(weight)});
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  kept.drop_dead(gone);
  if (const auto found = kept.by_key.find(key); found != kept.by_key.end()) kept.drop(found->second, gone);  // another thread's
  kept.bytes += added.front().weight->bytes;
  kept.entries.splice(kept.entries.begin(), added);
  kept.by_key[key] = kept.entries.begin();
  while (kept.bytes > most_bytes || kept.entries.size() > most_weights) kept.drop(std::prev(kept.entries.end()), gone);
}

}  // namespace

Keeper::Keeper(
    const Policy& policy, const ConvAlgorithm& algorithm, const ConvProblem& p, Op op, const at::Tensor& weight, const Parallel& parallel,
    bool is_frozen)
    : policy_(policy), algorithm_(algorithm), p_(p), op_(op), weight_(weight), parallel_(parallel), is_frozen_(is_frozen) {}

const void* Keeper::plain() {
  if (!plain_.defined()) plain_ = weight_.contiguous();
  return plain_.data_ptr();
}

const Fingerprint& Keeper::print() {
  // In the order in which it lies in memory, where nothing lies between: the key has the strides.
  const void* bytes = weight_.is_non_overlapping_and_dense() ? weight_.data_ptr() : plain();
  if (!print_) print_ = policy_.table().passes->fingerprint(bytes, w_size(p_) * weight_.element_size(), parallel_);
  return *print_;
}

bool Keeper::is_same(KeptWeight& weight) {
  const void* at = weight_.data_ptr();
  if (is_frozen_ && weight.is_checked(policy_, at)) return true;
  if (weight.print != print()) return false;
  weight.note_check(policy_, at);
  return true;
}

const void* Keeper::get(void* self, int form) try {
  auto& keeper = *static_cast<Keeper*>(self);
  if (form == plain_weight) return keeper.plain();
  auto& used = form == window_norms ? keeper.norms_ : keeper.used_[form];
  if (!used) used = keeper.form(form);
  return used ? used->data : nullptr;
} catch (const std::exception&) {  // no memory is left: conv_run shall try without
  drop_kept_weights(true);
  return nullptr;
}

std::shared_ptr<KeptWeight> Keeper::form(int form) {
  const bool counts = form != window_norms;
  const size_t bytes = counts ? algorithm_.prepared_size(p_, op_, form) : window_norms_size(p_);
  if (!weight_.has_storage() || bytes == 0 || bytes > most_bytes) return nullptr;
  const std::string key = key_of(weight_, algorithm_, p_, op_, form);
  std::shared_ptr<KeptWeight> weight = look_up(key);
  if (weight && is_same(*weight)) {
    found += counts;
    return weight;
  }
  if (!weight || !take_away(key, weight)) weight = std::make_shared<KeptWeight>(bytes);
  // Before it is read to be prepared: if another process changes it meanwhile, then its bytes are no longer these.
  weight->print = print();
  weight->note_check(policy_, weight_.data_ptr());
  if (counts)
    algorithm_.prepare(p_, op_, form, plain(), weight->data, parallel_);
  else
    prepare_window_norms(policy_.table(), p_, op_, plain(), static_cast<float*>(weight->data), parallel_);
  keep(key, weight_, weight);
  made += counts;
  return weight;
}

KeptTensor kept_tensor(
    const Policy& policy, const at::Tensor& weight, const at::Tensor& values, const std::string& what, const Parallel& parallel,
    bool is_frozen, const std::function<KeptTensor()>& make) {
  std::string key = what;
  const auto add = [&](const auto& part) { key.append(reinterpret_cast<const char*>(&part), sizeof part); };
  add(impl_of(weight)), add(weight.storage_offset());
  for (int64_t i = 0; i < weight.dim(); i++) add(weight.stride(i));
  const auto print_of = [&](const at::Tensor& t) {
    const at::Tensor plain = t.is_non_overlapping_and_dense() ? t : t.contiguous();
    return policy.table().passes->fingerprint(plain.data_ptr(), int64_t(plain.nbytes()), parallel);
  };
  add(values.defined());
  if (values.defined()) add(print_of(values));  // what is frozen are weights
  const std::shared_ptr<KeptWeight> known = look_up(key);
  if (known && is_frozen && known->is_checked(policy, weight.data_ptr())) return known->of_torch;
  const Fingerprint print = print_of(weight);
  if (known && known->print == print) {
    known->note_check(policy, weight.data_ptr());
    return known->of_torch;
  }
  const auto made = std::make_shared<KeptWeight>(make(), weight.nbytes());
  made->print = print;
  made->note_check(policy, weight.data_ptr());
  if (made->bytes <= most_bytes) keep(key, weight, made);
  return made->of_torch;
}

void drop_kept_weights(bool all_of_them) {
  Entries gone;
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  while (all_of_them && !kept.entries.empty()) kept.drop(kept.entries.begin(), gone);
  kept.drop_dead(gone);
}

}  // namespace msctx::glue
