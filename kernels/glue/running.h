// What runs now in each thread, for a watchdog.
#pragma once

#include "glue/operators.h"

namespace msctx::glue {

struct Running {
  const Operator* op = nullptr;
  int64_t began = 0;
  const char* module = "";
  long caller = 0;  // of an operator that may call Python: the frame of Python that called it, by its identity
};

// In this thread. Returns what ran until then: an operator of which Python, or nothing.
Running begin_running(const Running&);
void end_running(const Running& before);

}  // namespace msctx::glue
