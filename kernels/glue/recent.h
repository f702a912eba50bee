// The last operators of the process.
#pragma once

#include <ATen/core/ivalue.h>

#include "glue/rows.h"

namespace msctx::glue {

struct Recent;
// One more, which runs.
Recent* remember(const Row&, at::ArrayRef<c10::IValue> arguments);
// It has ended.
void finish(Recent*, const Row&, bool has_failed);
std::string recent_as_json();

}  // namespace msctx::glue
