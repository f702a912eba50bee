// A pool of host memory: blocks in size classes, carved from large pieces of the system's memory and used again and again, since fresh
// pages cost more than most that is done with them. Caps count what has been allocated since they were set. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace msctx {

// What becomes of blocks that nobody uses.
enum class Keep : int {
  nothing,  // they go back to the system at once, and as long as it has others no address is used twice
  // else they are kept as long as, with those in use, they are no more than
  some,     // the peak of those in use
  settled,  // that, and what was given back and then wanted again, up to the peak once more
  all,      // that, and half of the peak
};

struct PoolStatistics {
  int64_t current, peak;             // bytes asked for and not yet released
  int64_t reserved, peak_reserved;   // bytes of blocks that the pool holds, in use or not
  int64_t allocations, released;     // how often
  int64_t fresh;                     // how often memory came from the system
  int64_t out_of_memory;
  int64_t idle;                      // bytes that can go back to the system
};

struct CapStatistics {
  int64_t limit, current, peak, allocations, out_of_memory;
};

// Why there is no memory: the cap that refused it, or -1: the system has none.
struct Refusal {
  int64_t cap = -1;
  CapStatistics found{};
};

// Bytes aligned to 64, or nullptr and why. What it gives is released by pool_release alone, from any thread, at any time.
void* pool_allocate(size_t bytes, Refusal& why) noexcept;
void pool_release(void* data) noexcept;
// Whether a pointer that its holder has not released came from the pool; it may be anybody's. Takes no lock and reads nothing beside it.
bool pool_owns(const void* data) noexcept;
// How many bytes were asked for.
size_t pool_size_of(const void* data) noexcept;

// A request has been refused for good, by a cap or (-1) the system.
void pool_refused(int64_t cap);

// While it is closed, as it is at first, nothing is kept, and addresses may come again. `piece`: how much address space is taken from the system at a time.
void pool_open(Keep keep, size_t piece);
void pool_close();
// Gives back all that nobody uses; returns how many bytes.
int64_t pool_empty_cache();
PoolStatistics pool_statistics();
void pool_reset_peak();

// What this thread allocates from now on is for this: 0 is nothing in particular; returns what it was for until now.
constexpr int most_purposes = 4096;
int pool_purpose(int purpose);
// Bytes in use for each purpose, now or as it was when memory was refused last.
void pool_purposes(int64_t* bytes, int count, bool at_refusal);

// A cap counts from now on what is allocated until it is closed; returns its number, from 1 on. `origin`: who has set it, for messages.
int64_t cap_open(int64_t limit, std::string origin = "");
void cap_adjust(int64_t cap, int64_t limit, std::string origin);  // it goes on counting
std::string cap_origin(int64_t cap);
void cap_close(int64_t cap);
bool cap_statistics(int64_t cap, CapStatistics& found);

}  // namespace msctx
