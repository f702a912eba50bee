// The pool: small requests go to malloc, which never touches fresh pages for them; all others have blocks. Blocks of up to 128 KB lie in
// slabs of one class, larger ones have a mapping of their own; a slab or mapping of which nothing is in use can go back to the system.
#include "msctx/memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "msctx/process.h"

namespace msctx {
namespace {

constexpr size_t alignment = 64, page = 4096;
constexpr size_t huge_page = size_t(2) << 20;
constexpr size_t from_huge = size_t(4) << 20;  // smaller mappings would hold much that nobody has touched
constexpr size_t small_limit = size_t(16) << 10, slab_limit = size_t(128) << 10, slab_size = size_t(1) << 20;
constexpr int classes_of_doubling = 8;  // no block is more than an eighth larger than it must be
constexpr int class_count = 40 * classes_of_doubling;
constexpr int most_larger = 2;  // classes that a request may go up to find a block
constexpr size_t most_bytes = size_t(1) << 46;

struct Extent;

// Before each block's data.
struct alignas(alignment) Header {
  size_t bytes;           // asked for
  int64_t opened;         // the last cap that had been opened before: those before count it, too; 0: none was open
  void* base;             // of malloc
  Extent* extent;         // null: malloc's
  Header *under, *above;  // among the idle ones of its class
  int32_t size_class, purpose;
};
static_assert(sizeof(Header) == alignment);

// A slab, or the mapping of a single block.
struct Extent {
  char* start;
  size_t bytes;
  int size_class, blocks, made = 0, used = 0;
  std::vector<Header*> all;       // its blocks
  Extent *older = nullptr, *newer = nullptr;  // among those of which nothing is in use
};

void* data_of(Header* header) { return header + 1; }
Header* header_of(const void* data) { return static_cast<Header*>(const_cast<void*>(data)) - 1; }

// The smallest class that holds `bytes`, from 16 KB on: 8 steps to each doubling.
int class_of(size_t bytes) {
  const size_t last = std::max(bytes, small_limit) - 1;
  const int doubling = 63 - std::countl_zero(last);
  const int step = int((last >> (doubling - 3)) & 7);
  return (doubling - 13) * classes_of_doubling + step;
}
size_t size_of_class(int size_class) {
  const int doubling = size_class / classes_of_doubling + 13, step = size_class % classes_of_doubling;
  return size_t(classes_of_doubling + step + 1) << (doubling - 3);
}

struct Cap {
  int64_t number;
  CapStatistics found;
};

struct Pool {
  std::array<Header*, class_count> idle{};    // blocks, the last used first
  std::array<Extent*, class_count> growing{};  // slabs that have room for more blocks
  std::array<uint32_t, class_count> made{};
  Extent *oldest = nullptr, *newest = nullptr;
  std::map<char*, size_t> pieces;  // of address space, for slabs: where → how many bytes
  std::vector<char*> free_slabs;   // without pages
  Keep keep = Keep::nothing;
  size_t piece_size = 0;
  int64_t highest = 0;  // the most that extents in use have had since it was opened

  std::atomic<int64_t> idle_bytes{0};  // of extents of which nothing is in use
  std::atomic<int64_t> current{0}, peak{0}, reserved{0}, peak_reserved{0}, allocations{0}, released{0}, fresh{0}, out_of_memory{0};

  std::vector<Cap> caps;
  std::array<std::atomic<int64_t>, most_purposes> by_purpose{}, refused{};
  std::atomic<int64_t> caps_opened{0};
  std::atomic<bool> has_caps{false};
};

std::mutex& blocks_lock = fork_safe_mutex();
std::mutex& caps_lock = fork_safe_mutex();
Pool& pool() {
  static Pool* all = new Pool;  // never destroyed: tensors are released while the process ends, and after
  return *all;
}

thread_local int purpose = 0;

void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  int64_t found = peak.load(std::memory_order_relaxed);
  while (found < value && !peak.compare_exchange_weak(found, value, std::memory_order_relaxed)) {
  }
}

// --- caps ---------------------------------------------------------------------------------------------------------------------

// Counts a request in all caps; false: one refuses it, and nothing is counted. `room`: what they leave for idle blocks.
bool count(Pool& all, Header& header, int64_t bytes, Refusal& why, int64_t& room) {
  header.opened = 0;
  room = INT64_MAX;
  if (!all.has_caps.load(std::memory_order_acquire)) return true;
  const std::lock_guard<std::mutex> guard(caps_lock);
  for (const Cap& cap : all.caps)
    if (bytes > cap.found.limit - cap.found.current) {
      why = {cap.number, cap.found};
      return false;
    }
  header.opened = all.caps_opened.load(std::memory_order_relaxed);
  for (Cap& cap : all.caps) {
    cap.found.current += bytes;
    cap.found.peak = std::max(cap.found.peak, cap.found.current);
    cap.found.allocations++;
    room = std::min(room, cap.found.limit - cap.found.current);
  }
  return true;
}

void uncount(Pool& all, const Header& header) {
  if (!header.opened || !all.has_caps.load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> guard(caps_lock);
  for (Cap& cap : all.caps)
    if (header.opened >= cap.number) cap.found.current -= int64_t(header.bytes);
}

// --- blocks and extents; the lock is held ---------------------------------------------------------------------------------------

void leave_idle(Pool& all, Extent* extent) {
  (extent->older ? extent->older->newer : all.oldest) = extent->newer;
  (extent->newer ? extent->newer->older : all.newest) = extent->older;
  all.idle_bytes.fetch_sub(int64_t(extent->bytes), std::memory_order_relaxed);
}

void push(Pool& all, Header* block) {
  Header*& top = all.idle[size_t(block->size_class)];
  block->under = top;
  block->above = nullptr;
  if (top) top->above = block;
  top = block;
  Extent* extent = block->extent;
  if (--extent->used) return;
  extent->older = all.newest;
  extent->newer = nullptr;
  (all.newest ? all.newest->newer : all.oldest) = extent;
  all.newest = extent;
  all.idle_bytes.fetch_add(int64_t(extent->bytes), std::memory_order_relaxed);
}

void unlink(Pool& all, Header* block) {
  (block->above ? block->above->under : all.idle[size_t(block->size_class)]) = block->under;
  if (block->under) block->under->above = block->above;
}

bool is_slab(const Extent& extent) { return extent.blocks > 1; }

// Pieces of which no slab is in use go, too.
void drop_pieces(Pool& all) {
  for (auto piece = all.pieces.begin(); piece != all.pieces.end();) {
    const auto [start, bytes] = *piece;
    const auto is_of_it = [start = start, bytes = bytes](const char* slab) { return slab >= start && slab < start + bytes; };
    const auto free = std::count_if(all.free_slabs.begin(), all.free_slabs.end(), is_of_it);
    if (size_t(free) < bytes / slab_size) {
      ++piece;
      continue;
    }
    std::erase_if(all.free_slabs, is_of_it);
    munmap(start, bytes);
    piece = all.pieces.erase(piece);
  }
}

void give_up(Pool& all, Extent* extent) {
  leave_idle(all, extent);
  for (Header* block : extent->all) unlink(all, block);
  Extent*& growing = all.growing[size_t(extent->size_class)];
  if (growing == extent) growing = nullptr;
  all.reserved.fetch_sub(int64_t(extent->bytes), std::memory_order_relaxed);
  if (is_slab(*extent)) {
    madvise(extent->start, extent->bytes, MADV_DONTNEED);
    all.free_slabs.push_back(extent->start);
  } else {
    munmap(extent->start, extent->bytes);
  }
  delete extent;
}

int64_t shrink_to(Pool& all, int64_t bytes) {
  const int64_t before = all.idle_bytes.load(std::memory_order_relaxed);
  while (all.oldest && all.idle_bytes.load(std::memory_order_relaxed) > bytes) give_up(all, all.oldest);
  return before - all.idle_bytes.load(std::memory_order_relaxed);
}

// How much may be idle where so much more comes into use.
int64_t most_idle(const Pool& all, int64_t more = 0) {
  const int64_t used = all.reserved.load(std::memory_order_relaxed) - all.idle_bytes.load(std::memory_order_relaxed) + more;
  const int64_t highest = std::max(all.highest, used);
  const int64_t most = all.keep == Keep::all ? highest + highest / 2 : all.keep == Keep::some ? highest : 0;
  return std::max<int64_t>(0, most - used);
}

char* map(size_t bytes, bool huge) {
  const size_t more = huge ? huge_page : 0;
  void* found = mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(found);
  if (!huge) return start;
  char* const aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(start) + huge_page - 1) / huge_page * huge_page);
  if (aligned > start) munmap(start, size_t(aligned - start));
  if (const size_t rest = huge_page - size_t(aligned - start)) munmap(aligned + bytes, rest);
  madvise(aligned, bytes, MADV_HUGEPAGE);  // a kernel that has none says so, and that is all right
  return aligned;
}

char* free_slab(Pool& all) {
  if (all.free_slabs.empty()) {
    char* piece = map(all.piece_size, false);
    if (!piece) return nullptr;
    all.pieces[piece] = all.piece_size;
    size_t slabs = 0;
    for (const auto& [start, bytes] : all.pieces) slabs += bytes / slab_size;
    all.free_slabs.reserve(slabs);  // to give one back needs no memory
    for (size_t i = all.piece_size / slab_size; i-- > 0;) all.free_slabs.push_back(piece + i * slab_size);
  }
  char* slab = all.free_slabs.back();
  all.free_slabs.pop_back();
  return slab;
}

// The next block of a slab, or the only one of a mapping. Blocks begin at different places of a page: equal ones would be read and written
// at the same places of the first cache, which takes the ones for the others.
Header* next_block(Pool& all, Extent* extent, size_t shift) {
  const size_t stride = sizeof(Header) + size_of_class(extent->size_class);
  auto* block = new (extent->start + shift + size_t(extent->made++) * stride) Header{};
  block->size_class = extent->size_class;
  block->extent = extent;
  extent->all.push_back(block);
  if (extent->made == extent->blocks && all.growing[size_t(extent->size_class)] == extent) all.growing[size_t(extent->size_class)] = nullptr;
  return block;
}

Header* fresh_block(Pool& all, int size_class) try {
  const size_t size = size_of_class(size_class), stride = sizeof(Header) + size;
  if (Extent* extent = all.growing[size_t(size_class)]) return next_block(all, extent, 0);
  const bool slab = size <= slab_limit;
  const size_t shift = slab ? 0 : all.made[size_t(size_class)]++ * 5 % 60 * alignment;
  const size_t bytes = slab ? slab_size : (shift + stride + page - 1) / page * page;
  auto extent = std::make_unique<Extent>(Extent{nullptr, bytes, size_class, slab ? int(slab_size / stride) : 1, 0, 0, {}, nullptr, nullptr});
  extent->all.reserve(size_t(extent->blocks));
  extent->start = slab ? free_slab(all) : map(bytes, bytes >= from_huge);
  if (!extent->start) return nullptr;
  if (slab) all.growing[size_t(size_class)] = extent.get();
  raise_to(all.peak_reserved, all.reserved.fetch_add(int64_t(bytes), std::memory_order_relaxed) + int64_t(bytes));
  all.fresh.fetch_add(1, std::memory_order_relaxed);
  return next_block(all, extent.release(), shift);
} catch (const std::bad_alloc&) {
  return nullptr;
}

Header* idle_block(Pool& all, int size_class) {
  for (int i = size_class; i <= std::min(size_class + most_larger, class_count - 1); i++) {
    if (Header* block = all.idle[size_t(i)]) {
      if (!block->extent->used) leave_idle(all, block->extent);
      unlink(all, block);
      return block;
    }
    if (all.growing[size_t(i)]) return fresh_block(all, i);
  }
  return nullptr;
}

Header* used_now(Pool& all, Header* block) {
  if (!block) return nullptr;
  block->extent->used++;
  all.highest = std::max(all.highest, all.reserved.load(std::memory_order_relaxed) - all.idle_bytes.load(std::memory_order_relaxed));
  return block;
}

Header* block_for(Pool& all, size_t bytes, int64_t room) {
  const int size_class = class_of(bytes);
  const std::lock_guard<std::mutex> guard(blocks_lock);
  // The request is counted in the caps already: what they leave is for idle blocks alone.
  if (Header* block = used_now(all, idle_block(all, size_class))) {
    shrink_to(all, room);
    return block;
  }
  shrink_to(all, std::min(room, most_idle(all, int64_t(size_of_class(size_class)))));
  Header* block = fresh_block(all, size_class);
  if (!block && shrink_to(all, 0)) block = fresh_block(all, size_class);
  return used_now(all, block);
}

Header* small_block(Pool& all, size_t bytes, int64_t room) {
  if (all.idle_bytes.load(std::memory_order_relaxed) > room) {
    const std::lock_guard<std::mutex> guard(blocks_lock);
    shrink_to(all, room);
  }
  void* const base = std::malloc(bytes + sizeof(Header) + alignment);
  if (!base) return nullptr;
  const uintptr_t data = (reinterpret_cast<uintptr_t>(base) + sizeof(Header) + alignment - 1) / alignment * alignment;
  auto* block = new (reinterpret_cast<void*>(data - sizeof(Header))) Header{};
  block->base = base;
  return block;
}

void give_back(Pool& all, Header* block) {
  if (!block->extent) return std::free(block->base);
  const std::lock_guard<std::mutex> guard(blocks_lock);
  push(all, block);
  if (shrink_to(all, most_idle(all)) && all.keep == Keep::nothing) drop_pieces(all);
}

void* refuse(Pool& all) {
  for (size_t i = 0; i < all.refused.size(); i++)
    all.refused[i].store(all.by_purpose[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
  return nullptr;
}

}  // namespace

void* pool_allocate(size_t bytes, Refusal& why) noexcept {
  Pool& all = pool();
  Header asked{};
  int64_t room = 0;
  if (bytes > most_bytes || !count(all, asked, int64_t(bytes), why, room)) return refuse(all);
  asked.bytes = bytes;
  Header* block = bytes <= small_limit ? small_block(all, bytes, room) : block_for(all, bytes, room);
  if (!block) {
    uncount(all, asked);
    return refuse(all);
  }
  block->bytes = bytes;
  block->opened = asked.opened;
  block->purpose = purpose;
  all.by_purpose[size_t(purpose)].fetch_add(int64_t(bytes), std::memory_order_relaxed);
  all.allocations.fetch_add(1, std::memory_order_relaxed);
  raise_to(all.peak, all.current.fetch_add(int64_t(bytes), std::memory_order_relaxed) + int64_t(bytes));
  return data_of(block);
}

void pool_release(void* data) noexcept {
  if (!data) return;
  Pool& all = pool();
  Header* block = header_of(data);
  uncount(all, *block);
  all.current.fetch_sub(int64_t(block->bytes), std::memory_order_relaxed);
  all.released.fetch_add(1, std::memory_order_relaxed);
  all.by_purpose[size_t(block->purpose)].fetch_sub(int64_t(block->bytes), std::memory_order_relaxed);
  give_back(all, block);
}

size_t pool_size_of(const void* data) noexcept { return data ? header_of(data)->bytes : 0; }

void pool_refused(int64_t number) {
  pool().out_of_memory.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> guard(caps_lock);
  for (Cap& cap : pool().caps)
    if (cap.number == number) cap.found.out_of_memory++;
}

void pool_open(Keep keep, size_t piece) {
  Pool& all = pool();
  const std::lock_guard<std::mutex> guard(blocks_lock);
  all.keep = keep;
  all.highest = 0;
  all.piece_size = std::max(piece / slab_size * slab_size, slab_size);
  shrink_to(all, most_idle(all));
  if (keep == Keep::nothing) drop_pieces(all);
}

void pool_close() { pool_open(Keep::nothing, 0); }

int64_t pool_empty_cache() {
  const std::lock_guard<std::mutex> guard(blocks_lock);
  const int64_t gone = shrink_to(pool(), 0);
  drop_pieces(pool());
  return gone;
}

PoolStatistics pool_statistics() {
  const Pool& all = pool();
  const auto of = [](const std::atomic<int64_t>& value) { return value.load(std::memory_order_relaxed); };
  return {of(all.current), of(all.peak), of(all.reserved), of(all.peak_reserved), of(all.allocations), of(all.released), of(all.fresh),
          of(all.out_of_memory), of(all.idle_bytes)};
}

void pool_reset_peak() {
  Pool& all = pool();
  all.peak.store(all.current.load(std::memory_order_relaxed), std::memory_order_relaxed);
  all.peak_reserved.store(all.reserved.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

int pool_purpose(int wanted) {
  const int found = purpose;
  purpose = wanted >= 0 && wanted < most_purposes ? wanted : 0;
  return found;
}

void pool_purposes(int64_t* bytes, int count, bool at_refusal) {
  const auto& from = at_refusal ? pool().refused : pool().by_purpose;
  for (int i = 0; i < count && i < most_purposes; i++) bytes[i] = from[size_t(i)].load(std::memory_order_relaxed);
}

int64_t cap_open(int64_t limit) {
  Pool& all = pool();
  const std::lock_guard<std::mutex> guard(caps_lock);
  const int64_t number = all.caps_opened.load(std::memory_order_relaxed) + 1;
  all.caps.push_back({number, {limit, 0, 0, 0, 0}});
  all.caps_opened.store(number, std::memory_order_relaxed);
  all.has_caps.store(true, std::memory_order_release);
  return number;
}

void cap_adjust(int64_t number, int64_t limit) {
  const std::lock_guard<std::mutex> guard(caps_lock);
  for (Cap& cap : pool().caps)
    if (cap.number == number) cap.found.limit = limit;
}

void cap_close(int64_t number) {
  Pool& all = pool();
  const std::lock_guard<std::mutex> guard(caps_lock);
  std::erase_if(all.caps, [&](const Cap& cap) { return cap.number == number; });
  all.has_caps.store(!all.caps.empty(), std::memory_order_release);
}

bool cap_statistics(int64_t number, CapStatistics& found) {
  const std::lock_guard<std::mutex> guard(caps_lock);
  for (const Cap& cap : pool().caps)
    if (cap.number == number) {
      found = cap.found;
      return true;
    }
  return false;
}

}  // namespace msctx
