#include "recorder.h"

#include <deque>
#include <mutex>

namespace {

std::mutex guard;
std::string lines, taken;

struct Fault {
  std::string name;
  int nth, code;
};
std::deque<Fault> faults;

}  // namespace

void recorder::write(const std::string& line) {
  std::lock_guard hold(guard);
  lines += line + '\n';
}

int recorder::fault(const char* name) {
  std::lock_guard hold(guard);
  for (auto found = faults.begin(); found != faults.end(); ++found)
    if (found->name == name && --found->nth == 0) {
      const int code = found->code;
      faults.erase(found);
      return code;
    }
  return 0;
}

// The lines since the last time.
extern "C" const char* recorder_take() {
  std::lock_guard hold(guard);
  taken.swap(lines);
  lines.clear();
  return taken.c_str();
}

// The nth call of a function from now on fails.
extern "C" void recorder_fail(const char* name, int nth, int code) {
  std::lock_guard hold(guard);
  faults.push_back({name, nth, code});
}
