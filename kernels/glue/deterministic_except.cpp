// Deterministic mode is off while an operator runs that is left out of it. The flag belongs to the process, and so do these operators: the
// last to end sets it, to what it was or what it is set to meanwhile.
#include <ATen/Context.h>

#include "glue/observed.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

// A mode is 1, if it is on, and 2 more, if it only warns.
struct {
  std::mutex& lock = fork_safe_mutex();
  int found = 0;
  int64_t running = 0;
} relaxed;

int of_torch() { return at::globalContext().deterministicAlgorithms() + 2 * at::globalContext().deterministicAlgorithmsWarnOnly(); }
void put(int mode) { at::globalContext().setDeterministicAlgorithms(mode & 1, mode & 2); }

}  // namespace

void begin_exception() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  if (relaxed.running++ != 0) return;
  relaxed.found = of_torch();
  put(0);
}

void end_exception() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  if (--relaxed.running == 0) put(relaxed.found);
}

}  // namespace msctx::glue

using namespace msctx::glue;

// Torch's mode, as it is for operators that are not left out.
MSCTX_API int msctx_deterministic() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  return relaxed.running ? relaxed.found : of_torch();
}
MSCTX_API void msctx_set_deterministic(int mode) {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  relaxed.found = mode;
  if (!relaxed.running) put(mode);
}
