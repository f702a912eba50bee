// Forks, and messages to Python.
#include "msctx/process.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <vector>

namespace msctx {

int64_t forks = 0;

namespace {

struct Mutexes {
  std::vector<std::mutex*> taken;    // before a fork: what they guard is whole in the child
  std::vector<std::mutex*> renewed;  // in the child
};
Mutexes& mutexes() {
  static auto* all = new Mutexes;
  return *all;
}

PythonFunction warner = nullptr;

void take() {
  for (std::mutex* mutex : mutexes().taken) mutex->lock();
}
void release() {
  for (std::mutex* mutex : mutexes().taken) mutex->unlock();
}
void begin_child() {
  forks++;
  release();
  for (std::mutex* mutex : mutexes().renewed) new (mutex) std::mutex;
}

const int registered = pthread_atfork(take, release, begin_child);

}  // namespace

uint64_t thread_id() {
  thread_local uint64_t id = 0;
  thread_local int64_t known_after = -1;
  if (known_after != forks) id = uint64_t(gettid()), known_after = forks;
  return id;
}

std::mutex& fork_safe_mutex(bool is_short) {
  auto* mutex = new std::mutex;
  (is_short ? mutexes().taken : mutexes().renewed).push_back(mutex);
  return *mutex;
}

bool warn(const std::string& text) {
  return call_python(warner, 0, "(y)", text.c_str()) != 0;
}

std::string in_words(int64_t bytes) {
  double value = double(bytes);
  const char* unit = "bytes";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB", "PiB"})
    if (value >= 1024) value /= 1024, unit = larger;
  char text[64];
  std::snprintf(text, sizeof text, "%.4g %s", value, unit);
  return text;
}

void set_warner(PythonFunction wanted) { warner = wanted; }

}  // namespace msctx
