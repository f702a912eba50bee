// torch's CPU allocator while the pool is asked for.
#pragma once

#include <string>

namespace msctx::glue {

// "" or why it cannot be had: another library's allocator is in force.
std::string install_allocator();
// Puts back the one that was found, unless somebody has put another one over it since.
void remove_allocator();

}  // namespace msctx::glue
