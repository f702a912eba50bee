// What runs now in each thread, for a watchdog.
#pragma once

#include "glue/rows.h"

namespace msctx::glue {

// In this thread.
void begin_running(const Row&);
void end_running();

}  // namespace msctx::glue
