// Forks, and messages to Python.
#include "msctx/process.h"

#include <pthread.h>

#include <new>
#include <vector>

namespace msctx {

bool forked = false;

namespace {

std::vector<std::mutex*>& mutexes() {
  static auto* all = new std::vector<std::mutex*>;
  return *all;
}

int (*teller)(const char*) = nullptr;

const int registered = pthread_atfork(nullptr, nullptr, [] {
  forked = true;
  for (std::mutex* mutex : mutexes()) new (mutex) std::mutex;
});

}  // namespace

std::mutex& fork_safe_mutex() {
  mutexes().push_back(new std::mutex);
  return *mutexes().back();
}

bool tell(const std::string& kind, const std::string& text) { return teller != nullptr && teller((kind + "\n" + text).c_str()) != 0; }

void set_teller(int (*wanted)(const char*)) { teller = wanted; }

}  // namespace msctx
