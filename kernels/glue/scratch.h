// Memory that calls use for a while: it is kept for the next call, since fresh pages cost more than many convolutions.
#pragma once

#include <cstddef>

namespace msctx::glue {

// From torch's allocator, so that it counts in torch's statistics and caps. For any thread.
void* take_scratch(size_t bytes);
void release_scratch(void* data);

// Gives back most of what no call uses now: no policy is in force any more. With `all`, all of it.
void trim_scratch(bool all = false);

}  // namespace msctx::glue
