// What runs now in each thread, for a watchdog; and the last operators of the process.
#pragma once

#include <ATen/core/ivalue.h>

#include "glue/operators.h"
#include "glue/rows.h"

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

struct Recent;
// One more, which runs.
Recent* remember(const Row&, at::ArrayRef<c10::IValue> arguments);
// It has ended.
void finish(Recent*, const Row&, bool has_failed);
std::string recent_as_json();

}  // namespace msctx::glue
