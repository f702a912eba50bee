// The pool: blocks in size classes, with a header before each. Blocks of up to 128 KB lie in slabs of one class, larger ones are alone in
// their extent; an extent of which nothing is in use can give its pages back to the system. Extents are cut from large pieces of address
// space, those of 4 MB and more have a piece of their own: what a process holds takes few of the mappings that the kernel allows it.
#include "msctx/memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "msctx/process.h"

namespace msctx {
namespace {

constexpr size_t alignment = 64, page = 4096;
constexpr size_t unit = size_t(2) << 20;       // of address space: a piece has whole ones; and a huge page
constexpr size_t from_huge = size_t(4) << 20;  // smaller extents would hold much that nobody has touched
constexpr size_t least_piece = 4 * from_huge;
constexpr size_t slab_limit = size_t(128) << 10;
constexpr int classes_of_doubling = 8;  // above 1 KB, no block is more than an eighth larger than it must be
constexpr int class_count = 40 * classes_of_doubling;
constexpr int most_larger = 2;  // classes that a request may go up to find a block
constexpr size_t most_bytes = size_t(1) << 46;

// --- whose address it is --------------------------------------------------------------------------------------------------------

constexpr int address_bits = 48;  // the kernel gives higher ones to those alone who ask for them

// A bit for each unit of the address space, which the pool has whole or not at all. Untouched pages of it cost nothing.
std::array<std::atomic<uint64_t>, (size_t(1) << address_bits) / unit / 64> ours;

// Marked after it is mapped, and cleared before it is unmapped: whoever holds a pointer finds the same at any time.
void mark(const char* start, size_t bytes, bool is_ours) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(start) / unit;
  for (uintptr_t i = first; i < first + bytes / unit; i++) {
    const uint64_t bit = uint64_t(1) << i % 64;
    if (is_ours) {
      ours[i / 64].fetch_or(bit, std::memory_order_relaxed);
    } else {
      ours[i / 64].fetch_and(~bit, std::memory_order_relaxed);
    }
  }
}

// --- what the pool has ----------------------------------------------------------------------------------------------------------

struct Extent;

// Before each block's data.
struct alignas(alignment) Header {
  size_t bytes;    // asked for
  int64_t opened;  // the last cap that had been opened before: those before count it, too
  Extent* extent;
  Header *under, *above;  // among the idle ones of its class
  int32_t purpose;
};
static_assert(sizeof(Header) == alignment);

// Address space from the system, from which extents are cut one after the other.
struct Piece {
  char* start;
  size_t bytes, cut = 0;
  int with_pages = 0;             // how many of its extents
  std::vector<Extent*> extents{};  // all that were cut
  Piece* next = nullptr;          // among the retired
};

// A slab, or the place of a single block.
struct Extent {
  char* start;
  size_t bytes;
  Piece* piece;
  int size_class = 0, blocks = 0, made = 0, used = 0;
  char* first = nullptr;                      // block
  Extent *older = nullptr, *newer = nullptr;  // among those of which nothing is in use, or of the bare ones with as many pages
};

void* data_of(Header* header) { return header + 1; }
Header* header_of(const void* data) { return static_cast<Header*>(const_cast<void*>(data)) - 1; }

// The smallest class that holds `bytes`: steps of 64 bytes to 1 KB, then 8 to each doubling.
int class_of(size_t bytes) {
  const size_t last = std::max<size_t>(bytes, 1) - 1;
  if (last < 512) return int(last / alignment);
  const int doubling = 63 - std::countl_zero(last);
  return (doubling - 8) * classes_of_doubling + int((last >> (doubling - 3)) & 7);
}
size_t size_of_class(int size_class) {
  if (size_class < classes_of_doubling) return size_t(size_class + 1) * alignment;
  const int doubling = size_class / classes_of_doubling + 8, step = size_class % classes_of_doubling;
  return size_t(classes_of_doubling + step + 1) << (doubling - 3);
}
size_t stride_of(int size_class) { return sizeof(Header) + size_of_class(size_class); }
size_t slab_of(size_t size) { return size <= 4096 ? size_t(64) << 10 : size <= slab_limit ? size_t(1) << 20 : 0; }

struct Cap {
  int64_t number;
  CapStatistics found;
  std::string origin;
};

struct Pool {
  std::array<Header*, class_count> idle{};     // blocks, the last used first
  std::array<Extent*, class_count> growing{};  // slabs that have room for more blocks
  std::array<uint32_t, class_count> made{};
  Extent *oldest = nullptr, *newest = nullptr;
  std::array<Extent*, from_huge / page> bare{};  // without pages, by how many they can have
  std::vector<Piece*> pieces;                    // of several extents
  Piece *cutting = nullptr, *retired = nullptr;
  Keep keep = Keep::nothing;
  bool apart = false;  // no address is used twice
  size_t piece_size = least_piece;
  int64_t highest = 0;  // the most that extents in use have had since it was opened
  int64_t wanted_again = 0;  // bytes that were given up since then and came back: kept, or they would come and go forever
  std::array<int64_t, class_count> given_up{};  // bytes of extents

  PoolStatistics found{};
  std::vector<Cap> caps;
  int64_t caps_opened = 0;
  std::array<int64_t, most_purposes> by_purpose{}, refused{};

  int64_t in_use() const { return found.reserved - found.idle; }  // bytes of extents
};

std::mutex& lock = fork_safe_mutex();
Pool& pool = immortal<Pool>();  // tensors are released while the process ends, and after

thread_local int purpose = 0;

// --- caps; from here on the lock is held ------------------------------------------------------------------------------------------

Cap* cap_of(int64_t number) {  // nullptr: there is none
  const auto found = std::ranges::find(pool.caps, number, &Cap::number);
  return found == pool.caps.end() ? nullptr : &*found;
}

// False: a cap refuses it. `room`: what they leave for idle blocks.
bool is_allowed(int64_t bytes, Refusal& why, int64_t& room) {
  room = INT64_MAX;
  for (const Cap& cap : pool.caps) {
    const int64_t left = cap.found.limit - cap.found.current - bytes;
    if (left < 0) {
      why = {cap.number, cap.found};
      return false;
    }
    room = std::min(room, left);
  }
  return true;
}

void count(Header& block, size_t asked) {
  const auto bytes = int64_t(asked);
  block.bytes = asked;
  block.opened = pool.caps_opened;
  block.purpose = purpose;
  for (Cap& cap : pool.caps) {
    cap.found.current += bytes;
    cap.found.peak = std::max(cap.found.peak, cap.found.current);
    cap.found.allocations++;
  }
  pool.by_purpose[size_t(purpose)] += bytes;
  pool.found.allocations++;
  pool.found.current += bytes;
  pool.found.peak = std::max(pool.found.peak, pool.found.current);
}

void uncount(const Header& block) {
  const auto bytes = int64_t(block.bytes);
  for (Cap& cap : pool.caps)
    if (block.opened >= cap.number) cap.found.current -= bytes;
  pool.by_purpose[size_t(block.purpose)] -= bytes;
  pool.found.released++;
  pool.found.current -= bytes;
}

void* refuse() {
  pool.refused = pool.by_purpose;
  return nullptr;
}

// --- pieces -----------------------------------------------------------------------------------------------------------------------

size_t whole(size_t bytes, size_t of) { return (bytes + of - 1) / of * of; }

// Whole units. What is too much at the ends stays where the kernel allows no more mappings, and nobody uses it.
char* map(size_t bytes) {
  void* found = mmap(nullptr, bytes + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  char* const start = static_cast<char*>(found);
  char* const aligned = reinterpret_cast<char*>(whole(reinterpret_cast<uintptr_t>(start), unit));
  if (aligned > start) munmap(start, size_t(aligned - start));
  munmap(aligned + bytes, unit - size_t(aligned - start));
  mark(aligned, bytes, true);
  return aligned;
}

// False: the kernel has too many mappings to split one more.
bool unmap(const Piece& piece) {
  mark(piece.start, piece.bytes, false);
  if (!munmap(piece.start, piece.bytes)) return true;
  mark(piece.start, piece.bytes, true);
  return false;
}

// Its addresses do not come again. Without pages it costs next to nothing, and neighbours become one mapping.
void retire(Piece* piece) {
  mark(piece->start, piece->bytes, false);
  if (mmap(piece->start, piece->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
    madvise(piece->start, piece->bytes, MADV_DONTNEED);
  piece->next = std::exchange(pool.retired, piece);
}

// Without `apart` it has been unmapped.
void forget(Piece* piece) {
  if (pool.apart)
    retire(piece);
  else
    delete piece;
}

bool drop_retired() {
  const bool are_some = pool.retired;
  while (pool.retired && !munmap(pool.retired->start, pool.retired->bytes)) delete std::exchange(pool.retired, pool.retired->next);
  return are_some && !pool.retired;
}

// `wanted` bytes, or fewer where the system has no more; at least `bytes`.
Piece* fresh_piece(size_t bytes, size_t wanted) {
  auto piece = std::make_unique<Piece>(Piece{nullptr, 0});
  do {
    piece->bytes = wanted;
    while (!(piece->start = map(piece->bytes)) && piece->bytes > bytes) piece->bytes = std::max(bytes, whole(piece->bytes / 2, unit));
  } while (!piece->start && drop_retired());
  return piece->start ? piece.release() : nullptr;
}

// --- bare extents: those without pages ----------------------------------------------------------------------------------------------

void push_bare(Extent* extent) {
  Extent*& top = pool.bare[extent->bytes / page];
  extent->older = top;
  extent->newer = nullptr;
  if (top) top->newer = extent;
  top = extent;
}

void unlink_bare(Extent* extent) {
  (extent->newer ? extent->newer->older : pool.bare[extent->bytes / page]) = extent->older;
  if (extent->older) extent->older->newer = extent->newer;
}

// None of its extents has pages: from now on others can be cut from it, or it goes.
void clear(Piece* piece, bool goes) {
  for (Extent* extent : piece->extents) {
    unlink_bare(extent);
    delete extent;
  }
  piece->extents.clear();
  if (!pool.apart) piece->cut = 0;
  if (!goes || (!pool.apart && !unmap(*piece))) return;
  std::erase(pool.pieces, piece);
  if (pool.cutting == piece) pool.cutting = nullptr;
  forget(piece);
}

void drop_pieces() {
  for (size_t i = pool.pieces.size(); i-- > 0;)
    if (!pool.pieces[i]->with_pages) clear(pool.pieces[i], true);
  if (!pool.apart) drop_retired();
}

bool is_empty(const Piece* piece) { return !piece->with_pages; }

// One is kept for extents of other sizes.
void emptied(Piece* piece) {
  if (pool.apart) {
    if (piece != pool.cutting) clear(piece, true);
  } else {
    clear(piece, pool.keep == Keep::nothing || std::ranges::count_if(pool.pieces, is_empty) > 1);
  }
}

// A piece with so much left.
Piece* piece_for(size_t bytes) {
  const auto has_room = [bytes](const Piece* piece) { return piece->cut + bytes <= piece->bytes; };
  Piece* const before = pool.cutting;
  if (before && has_room(before)) return before;
  const auto empty = std::ranges::find_if(pool.pieces, [&](const Piece* piece) { return is_empty(piece) && has_room(piece); });
  if (empty != pool.pieces.end()) return pool.cutting = *empty;
  pool.pieces.reserve(pool.pieces.size() + 1);
  Piece* const made = fresh_piece(whole(bytes, unit), pool.piece_size);
  if (!made) return nullptr;
  pool.pieces.push_back(made);
  pool.cutting = made;
  if (before && is_empty(before)) emptied(before);
  return made;
}

// Of some eighth more pages at most, or fresh.
Extent* bare_extent(size_t bytes) {
  const size_t pages = bytes / page, most = std::min(pages + pages / 8, pool.bare.size() - 1);
  for (size_t i = pages; i <= most && !pool.apart; i++)
    if (Extent* extent = pool.bare[i]) {
      unlink_bare(extent);
      return extent;
    }
  Piece* piece = piece_for(bytes);
  if (!piece) return nullptr;
  auto extent = std::make_unique<Extent>(Extent{piece->start + piece->cut, bytes, piece});
  piece->extents.push_back(extent.get());
  piece->cut += bytes;
  return extent.release();
}

bool is_alone(const Extent& extent) { return extent.bytes >= from_huge; }

// An extent of a piece of its own. The last huge page may reach further than its bytes.
Extent* alone(size_t bytes) {
  auto extent = std::make_unique<Extent>(Extent{nullptr, bytes, nullptr});
  Piece* piece = fresh_piece(whole(bytes, unit), whole(bytes, unit));
  if (!piece) return nullptr;
  madvise(piece->start, bytes / unit * unit, MADV_HUGEPAGE);  // a kernel without them fails, which does no harm
  extent->start = piece->start;
  extent->piece = piece;
  return extent.release();
}

// --- blocks and extents -----------------------------------------------------------------------------------------------------------

void leave_idle(Extent* extent) {
  (extent->older ? extent->older->newer : pool.oldest) = extent->newer;
  (extent->newer ? extent->newer->older : pool.newest) = extent->older;
  pool.found.idle -= int64_t(extent->bytes);
}

void enter_idle(Extent* extent) {
  extent->older = pool.newest;
  extent->newer = nullptr;
  (pool.newest ? pool.newest->newer : pool.oldest) = extent;
  pool.newest = extent;
  pool.found.idle += int64_t(extent->bytes);
}

void link(Header* block) {
  Header*& top = pool.idle[size_t(block->extent->size_class)];
  block->under = top;
  block->above = nullptr;
  if (top) top->above = block;
  top = block;
}

void unlink(Header* block) {
  (block->above ? block->above->under : pool.idle[size_t(block->extent->size_class)]) = block->under;
  if (block->under) block->under->above = block->above;
}

Header* block_of(const Extent& extent, int number) {
  return reinterpret_cast<Header*>(extent.first + size_t(number) * stride_of(extent.size_class));
}

Header* made_block(Extent* extent, int number) {
  auto* block = new (block_of(*extent, number)) Header{};
  block->extent = extent;
  return block;
}

// False: the kernel does not take its addresses back. It is the last to be given up next, and has no pages meanwhile.
bool give_up(Extent* extent) {
  pool.given_up[size_t(extent->size_class)] += int64_t(extent->bytes);
  leave_idle(extent);
  for (int i = 0; i < extent->made; i++) unlink(block_of(*extent, i));
  Piece* const piece = extent->piece;
  if (is_alone(*extent) && !pool.apart && !unmap(*piece)) {
    madvise(extent->start, extent->bytes, MADV_DONTNEED);
    link(made_block(extent, 0));
    enter_idle(extent);
    return false;
  }
  pool.found.reserved -= int64_t(extent->bytes);
  if (Extent*& growing = pool.growing[size_t(extent->size_class)]; growing == extent) growing = nullptr;
  if (!is_alone(*extent)) {
    madvise(extent->start, extent->bytes, MADV_DONTNEED);
    push_bare(extent);
    if (!--piece->with_pages) emptied(piece);
    return true;
  }
  forget(piece);
  delete extent;
  return true;
}

int64_t shrink_to(int64_t bytes) {
  const int64_t before = pool.found.idle;
  while (pool.oldest && pool.found.idle > bytes && give_up(pool.oldest)) {
  }
  return before - pool.found.idle;
}

// How much may be idle where so much more comes into use.
int64_t most_idle(int64_t more = 0) {
  const int64_t used = pool.in_use() + more, highest = std::max(pool.highest, used);
  int64_t most = pool.keep == Keep::nothing ? 0 : highest;
  if (pool.keep >= Keep::settled) most += std::min(pool.wanted_again, highest);
  if (pool.keep == Keep::all) most += highest / 2;
  return std::max<int64_t>(0, most - used);
}

// The next block of a slab, or the only one of an extent.
Header* next_block(Extent* extent) {
  Header* block = made_block(extent, extent->made++);
  if (Extent*& growing = pool.growing[size_t(extent->size_class)]; extent->made == extent->blocks && growing == extent) growing = nullptr;
  return block;
}

// Single blocks begin at different places of a page: equal ones would be read and written at the same places of the first cache, which
// takes the ones for the others.
Header* fresh_block(int size_class) try {
  if (Extent* extent = pool.growing[size_t(size_class)]; extent && !pool.apart) return next_block(extent);
  const size_t stride = stride_of(size_class), slab = pool.apart ? 0 : slab_of(stride - sizeof(Header));
  const size_t shift = slab ? 0 : pool.made[size_t(size_class)]++ * 5 % 60 * alignment;
  const size_t bytes = slab ? slab : whole(shift + stride, page);
  Extent* extent = bytes < from_huge ? bare_extent(bytes) : alone(bytes);
  if (!extent) return nullptr;
  if (bytes < from_huge) extent->piece->with_pages++;
  extent->first = extent->start + shift;
  extent->size_class = size_class;
  extent->blocks = slab ? int(slab / stride) : 1;
  extent->made = extent->used = 0;
  if (slab) pool.growing[size_t(size_class)] = extent;
  const int64_t again = std::min(int64_t(extent->bytes), pool.given_up[size_t(size_class)]);
  pool.given_up[size_t(size_class)] -= again;
  pool.wanted_again += again;
  pool.found.reserved += int64_t(extent->bytes);
  pool.found.peak_reserved = std::max(pool.found.peak_reserved, pool.found.reserved);
  pool.found.fresh++;
  return next_block(extent);
} catch (const std::bad_alloc&) {
  return nullptr;
}

Header* idle_block(int size_class) {
  for (int i = size_class; i <= std::min(size_class + most_larger, class_count - 1) && !pool.apart; i++) {
    if (Header* block = pool.idle[size_t(i)]) {
      if (!block->extent->used) leave_idle(block->extent);
      unlink(block);
      return block;
    }
    if (pool.growing[size_t(i)]) return fresh_block(i);
  }
  return nullptr;
}

// The request is to be counted in the caps, too: what they leave is for idle blocks alone.
Header* block_for(size_t bytes, int64_t room) {
  const int size_class = class_of(bytes);
  Header* block = idle_block(size_class);
  if (block) {
    shrink_to(room);
  } else {
    shrink_to(std::min(room, most_idle(int64_t(size_of_class(size_class)))));
    block = fresh_block(size_class);
    if (!block && shrink_to(0)) block = fresh_block(size_class);
    if (!block) return nullptr;
  }
  block->extent->used++;
  pool.highest = std::max(pool.highest, pool.in_use());
  return block;
}

void open(Keep keep, bool apart) {
  pool.keep = keep;
  pool.apart = apart;
  pool.highest = pool.wanted_again = 0;
  shrink_to(most_idle());
  pool.given_up = {};
  if (keep == Keep::nothing) drop_pieces();
}

}  // namespace

void* pool_allocate(size_t bytes, Refusal& why) noexcept {
  why = {};
  const std::lock_guard<std::mutex> guard(lock);
  int64_t room = 0;
  if (bytes > most_bytes || !is_allowed(int64_t(bytes), why, room)) return refuse();
  Header* block = block_for(bytes, room);
  if (!block) return refuse();
  count(*block, bytes);
  return data_of(block);
}

void pool_release(void* data) noexcept {
  if (!data) return;
  const std::lock_guard<std::mutex> guard(lock);
  Header* block = header_of(data);
  uncount(*block);
  if (!--block->extent->used) enter_idle(block->extent);
  link(block);
  shrink_to(most_idle());
}

bool pool_owns(const void* data) noexcept {
  const uintptr_t number = reinterpret_cast<uintptr_t>(data) / unit;
  return number / 64 < ours.size() && ours[number / 64].load(std::memory_order_relaxed) >> number % 64 & 1;
}

size_t pool_size_of(const void* data) noexcept { return data ? header_of(data)->bytes : 0; }

void pool_refused(int64_t number) {
  const std::lock_guard<std::mutex> guard(lock);
  pool.found.out_of_memory++;
  if (Cap* cap = cap_of(number)) cap->found.out_of_memory++;
}

void pool_open(Keep keep, size_t piece) {
  const std::lock_guard<std::mutex> guard(lock);
  pool.piece_size = whole(std::max(piece, least_piece), unit);
  open(keep, keep == Keep::nothing);
}

void pool_close() {
  const std::lock_guard<std::mutex> guard(lock);
  open(Keep::nothing, false);
}

int64_t pool_empty_cache() {
  const std::lock_guard<std::mutex> guard(lock);
  const int64_t gone = shrink_to(0);
  drop_pieces();
  return gone;
}

PoolStatistics pool_statistics() {
  const std::lock_guard<std::mutex> guard(lock);
  return pool.found;
}

void pool_reset_peak() {
  const std::lock_guard<std::mutex> guard(lock);
  PoolStatistics& found = pool.found;
  found.peak = found.current;
  found.peak_reserved = found.reserved;
}

int pool_purpose(int wanted) {
  const int found = purpose;
  purpose = wanted >= 0 && wanted < most_purposes ? wanted : 0;
  return found;
}

void pool_purposes(int64_t* bytes, int count, bool at_refusal) {
  const std::lock_guard<std::mutex> guard(lock);
  const auto& from = at_refusal ? pool.refused : pool.by_purpose;
  std::copy_n(from.begin(), std::clamp(count, 0, most_purposes), bytes);
}

int64_t cap_open(int64_t limit, std::string origin) {
  const std::lock_guard<std::mutex> guard(lock);
  pool.caps.push_back({pool.caps_opened + 1, {limit, 0, 0, 0, 0}, std::move(origin)});
  return ++pool.caps_opened;
}

void cap_adjust(int64_t number, int64_t limit, std::string origin) {
  const std::lock_guard<std::mutex> guard(lock);
  if (Cap* cap = cap_of(number)) cap->found.limit = limit, cap->origin.swap(origin);
}

std::string cap_origin(int64_t number) {
  const std::lock_guard<std::mutex> guard(lock);
  const Cap* cap = cap_of(number);
  return cap ? cap->origin : "";
}

void cap_close(int64_t number) {
  const std::lock_guard<std::mutex> guard(lock);
  std::erase_if(pool.caps, [&](const Cap& cap) { return cap.number == number; });
}

bool cap_statistics(int64_t number, CapStatistics& found) {
  const std::lock_guard<std::mutex> guard(lock);
  const Cap* cap = cap_of(number);
  if (cap) found = cap->found;
  return cap != nullptr;
}

}  // namespace msctx
