// Deterministic mode is off while an operator runs that is left out of it. The flag belongs to the process, and so do these operators: the
// last to end sets it, to what it was or what it is set to meanwhile.
#include <ATen/Context.h>

#include "glue/observed.h"
#include "msctx/interface.h"
#include "msctx/process.h"

namespace msctx::glue {
namespace {

struct Mode {
  bool is_on = false, only_warns = false;
};
struct {
  std::mutex& lock = fork_safe_mutex();
  Mode found;
  int64_t running = 0;
} relaxed;

Mode of_torch() {
  return {at::globalContext().deterministicAlgorithms(), at::globalContext().deterministicAlgorithmsWarnOnly()};
}
void put(const Mode& mode) { at::globalContext().setDeterministicAlgorithms(mode.is_on, mode.only_warns); }

}  // namespace

void begin_exception() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  if (relaxed.running++ != 0) return;
  relaxed.found = of_torch();
  put({});
}

void end_exception() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  if (--relaxed.running == 0) put(relaxed.found);
}

}  // namespace msctx::glue

using namespace msctx;
using namespace msctx::glue;

// Torch's flags, as they are for operators that are not left out: is_on + 2 * only_warns.
MSCTX_API int msctx_deterministic() {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  const Mode mode = relaxed.running ? relaxed.found : of_torch();
  return mode.is_on + 2 * mode.only_warns;
}
MSCTX_API void msctx_set_deterministic(int mode) {
  const std::lock_guard<std::mutex> guard(relaxed.lock);
  relaxed.found = {bool(mode & 1), bool(mode & 2)};
  if (!relaxed.running) put(relaxed.found);
}
