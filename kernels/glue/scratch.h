// Memory that calls use for a while: it is kept for the next call, since fresh pages cost more than many convolutions.
#pragma once

#include <cstddef>
#include <vector>

#include "msctx/api.h"

namespace msctx::glue {

// From torch's allocator, so that it counts in torch's statistics and caps. For any thread.
Memory scratch_memory();

// While it lives, what this thread has when an exception passes by stays its own: until the next one asks for memory, or it ends.
class HoldOnFailure {
 public:
  HoldOnFailure();
  ~HoldOnFailure();
  HoldOnFailure(const HoldOnFailure&) = delete;
};
struct Held {
  const void* data;
  size_t bytes;
};
std::vector<Held> held_here();

// Gives back most of what no call uses now: no policy is in force any more. With `all`, all of it.
void trim_scratch(bool all = false);

}  // namespace msctx::glue
