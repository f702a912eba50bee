// The kept weights: by storage, place and problem; the least recently used go first.
#include "glue/kept_weights.h"

#include <algorithm>
#include <ranges>
#include <type_traits>
#include <unordered_map>

#include "glue/tensors.h"
#include "msctx/process.h"

namespace msctx::glue {

struct KeptWeight {
  const size_t bytes;
  void* const data;
  const at::Tensor of_torch;  // or `data`
  Fingerprint print{};  // of what it was made of
  // The last policy under which the bytes were looked at, and where they were: what frozen_weights trusts.
  std::atomic<int64_t> checked_under{0};
  std::atomic<const void*> checked_at{nullptr};

  explicit KeptWeight(size_t bytes) : bytes(bytes), data(take_scratch(bytes)) {}
  KeptWeight(at::Tensor made, size_t bytes) : bytes(bytes), data(nullptr), of_torch(std::move(made)) {}
  ~KeptWeight() { release_scratch(data); }
  KeptWeight(const KeptWeight&) = delete;
  void note_check(const Taken& policy, const void* at) { checked_under = policy.number, checked_at = at; }
};

namespace {

constexpr size_t most_bytes = size_t(512) << 20;
constexpr size_t most_weights = 1024;

template <class Part>
std::string& add(std::string& key, const Part& part) {
  static_assert(std::has_unique_object_representations_v<Part>, "padding would make two keys of one form");
  return key.append(reinterpret_cast<const char*>(&part), sizeof part);
}

struct Entry {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // no other storage gets its address as long as this is here
  std::shared_ptr<KeptWeight> weight;
  int64_t used;  // the last time, in uses of any
  int64_t tried_in;  // the measurement that keeps it, or 0
};
// Of this thread: the number of the measurement that it makes, or 0; and whether that has kept anything.
thread_local int64_t measurement = 0;
thread_local bool has_tried = false;

std::mutex& kept_weights_lock = fork_safe_mutex();
struct AllKept {
  std::unordered_map<std::string, Entry> by_key;
  size_t bytes = 0;
  int64_t uses = 0;

  int64_t oldest_use() const { return std::ranges::min(by_key | std::views::values | std::views::transform(&Entry::used)); }
  // Whether another finds a place: where all that is kept is still in turn, its place would be another one's, whose turn comes sooner.
  bool has_room(size_t more) const {
    return bytes + more <= most_bytes || (!by_key.empty() && uses - oldest_use() > 64 * int64_t(by_key.size()));
  }

  // The lock is held. What leaves goes to `gone`, to be freed when it is not.
  template <class Is>
  void drop(std::vector<std::shared_ptr<KeptWeight>>& gone, const Is& is) {
    std::erase_if(by_key, [&](const auto& one) {
      if (!is(one.second)) return false;
      gone.push_back(one.second.weight);
      bytes -= gone.back()->bytes;
      return true;
    });
  }
};
AllKept& kept = immortal<AllKept>();

std::shared_ptr<KeptWeight> look_up(const std::string& key) {
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  kept.uses++;
  const auto found = kept.by_key.find(key);
  if (found == kept.by_key.end()) return nullptr;
  found->second.used = kept.uses;
  return found->second.weight;
}

bool is_room_for(size_t bytes) {
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  return kept.has_room(bytes);
}

// Takes a weight that has changed away; true: nobody else uses its memory.
bool take_away(const std::shared_ptr<KeptWeight>& weight) {
  {
    std::vector<std::shared_ptr<KeptWeight>> gone;
    const std::lock_guard<std::mutex> guard(kept_weights_lock);
    kept.drop(gone, [&](const Entry& entry) { return entry.weight == weight; });
  }
  const bool alone = weight.use_count() == 1;
  std::atomic_thread_fence(std::memory_order_acquire);  // what the others read, they have read before
  return alone;
}

void keep(const std::string& key, const at::Tensor& of, std::shared_ptr<KeptWeight> weight) {
  std::vector<std::shared_ptr<KeptWeight>> gone;
  auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(of));
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  const auto found = kept.by_key.find(key);
  const void* const other = found == kept.by_key.end() ? nullptr : found->second.weight.get();  // another thread's
  kept.drop(gone, [&](const Entry& entry) { return entry.storage.expired() || entry.weight.get() == other; });
  kept.bytes += weight->bytes;
  kept.by_key.try_emplace(key, Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(storage), std::move(weight), ++kept.uses, measurement});
  has_tried |= measurement != 0;
  while (kept.bytes > most_bytes || kept.by_key.size() > most_weights) {
    const int64_t oldest = kept.oldest_use();
    kept.drop(gone, [&](const Entry& entry) { return entry.used == oldest; });
  }
}

}  // namespace

std::string key_of(const ConvAlgorithm& algorithm, ConvProblem p, Op op) {
  p.n = 1;
  for (int i = 0; i < 3 && algorithm.prepared_for_all_sizes; i++) p.in[i] = p.out[i] = 1;
  std::string key;
  key.reserve(sizeof p + 128);
  return add(add(add(key, &algorithm), p), op);
}

Keeper::Keeper(const Taken& policy, const at::Tensor& weight, std::string what, const Parallel& parallel, bool is_frozen)
    : policy_(policy), weight_(weight), key_(std::move(what)), parallel_(parallel), is_frozen_(is_frozen) {
  if (!weight.has_storage()) return;
  add(add(key_, storage_of(weight)), weight.storage_offset());
  for (const int64_t stride : weight.strides()) add(key_, stride);
}

const void* Keeper::plain(bool is_kept) {
  const auto copy = [&](auto) { return std::make_shared<KeptWeight>(weight_.contiguous(), weight_.nbytes()); };
  if (!plain_.defined() && is_kept && !weight_.is_contiguous())
    if (const auto kept_copy = current(plain_weight, false, weight_.nbytes(), copy)) plain_ = kept_copy->of_torch;
  if (!plain_.defined()) plain_ = weight_.contiguous();
  return plain_.data_ptr();
}

const Fingerprint& Keeper::print() {
  // In the order in which it lies in memory, where nothing lies between: the key has the strides.
  if (!weight_.is_non_overlapping_and_dense()) plain(false);
  if (!print_) print_ = print_of(plain_.defined() ? plain_ : weight_, parallel_);
  return *print_;
}

bool Keeper::is_same(KeptWeight& weight) {
  const void* at = weight_.data_ptr();
  if (is_frozen_ && weight.checked_under == policy_.number && weight.checked_at == at) return true;
  if (weight.print != print()) return false;
  weight.note_check(policy_, at);
  return true;
}

// The one of this form, if the weight has not changed; else make(one whose memory may be used). Null: so many bytes have no room.
template <class New>
std::shared_ptr<KeptWeight> Keeper::current(int number, bool counts, size_t bytes, const New& make) {
  std::string key;
  key.reserve(key_.size() + sizeof number);
  add(key += key_, number);
  std::shared_ptr<KeptWeight> weight = look_up(key);
  if (weight && is_same(*weight)) {
    found += counts;
    return weight;
  }
  if (!weight && !is_room_for(bytes)) return nullptr;
  // Before it is read to be prepared: if another process changes it meanwhile, then its bytes are no longer these.
  print();
  if (weight && !take_away(weight)) weight = nullptr;
  weight = make(std::move(weight));
  weight->print = print();
  weight->note_check(policy_, weight_.data_ptr());
  if (weight->bytes <= most_bytes) keep(key, weight_, weight);
  made += counts;
  return weight;
}

const void* Keeper::form(void* self, int number, size_t bytes, int (*make)(void* with, void* to), void* with) try {
  auto& keeper = *static_cast<Keeper*>(self);
  if (number == plain_weight || number == kept_plain_weight) return keeper.plain(number == kept_plain_weight);
  if (!keeper.weight_.has_storage() || bytes == 0 || bytes > most_bytes) return nullptr;
  const bool counts = number != window_norms;
  std::shared_ptr<KeptWeight>& used = keeper.used_[counts ? number : Prepared::most_forms];
  const auto filled = [&](std::shared_ptr<KeptWeight> weight) {
    if (!weight) weight = std::make_shared<KeptWeight>(bytes);
    if (!make(with, weight->data)) throw std::bad_alloc();
    return weight;
  };
  if (!used) used = keeper.current(number, counts, bytes, filled);
  return used ? used->data : nullptr;
} catch (const std::exception&) {  // no memory is left: the kernels shall try without
  drop_kept_weights(true);
  return nullptr;
}

at::Tensor Keeper::tensor(c10::function_ref<at::Tensor()> make) {
  return current(0, false, 0, [&](auto) { return std::make_shared<KeptWeight>(make(), weight_.nbytes()); })->of_torch;
}

WhileMeasuring::WhileMeasuring() : outer_(measurement) {
  static std::atomic<int64_t> last{0};
  measurement = ++last;
}
WhileMeasuring::~WhileMeasuring() {
  const int64_t mine = std::exchange(measurement, outer_);
  if (!has_tried) return;
  std::vector<std::shared_ptr<KeptWeight>> gone;
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  kept.drop(gone, [mine](const Entry& entry) { return entry.tried_in == mine; });
  has_tried = outer_ != 0;
}

void drop_kept_weights(bool all_of_them) {
  std::vector<std::shared_ptr<KeptWeight>> gone;
  const std::lock_guard<std::mutex> guard(kept_weights_lock);
  kept.drop(gone, [&](const Entry& entry) { return all_of_them || entry.storage.expired(); });
}

}  // namespace msctx::glue
