// The process around the kernels: forks, and sizes in messages. Each library has its own of this.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace msctx {

// How often this process, or one that it comes from, was forked after the library was loaded. OpenMP's threads did not come along: waiting
// for them would never end.
inline int64_t forks = 0;

// The kernel's number of this thread. It is asked once, since that is a system call.
inline uint64_t thread_id() {
  thread_local uint64_t id = 0;
  thread_local int64_t known_after = -1;
  if (known_after != forks) id = uint64_t(gettid()), known_after = forks;
  return id;
}

// For what threads share: it is never destroyed, since some may still compute while the process ends.
template <class T>
T& immortal() {
  return *new T();
}

struct Mutexes {
  std::vector<std::mutex*> taken;    // before a fork: what they guard is whole in the child
  std::vector<std::mutex*> renewed;  // in the child

  static Mutexes& all() {
    static Mutexes& one = immortal<Mutexes>();
    return one;
  }
  static void take() {
    for (std::mutex* mutex : all().taken) mutex->lock();
  }
  static void release() {
    for (std::mutex* mutex : all().taken) mutex->unlock();
  }
  static void begin_child() {
    forks++;
    release();
    for (std::mutex* mutex : all().renewed) new (mutex) std::mutex;
  }
};
inline const int registered = pthread_atfork(Mutexes::take, Mutexes::release, Mutexes::begin_child);

// A mutex for the life of the process that a forked child finds free. A fork waits for those that are held for short; the others are
// renewed in the child, since the thread that held them did not come along.
inline std::mutex& fork_safe_mutex(bool is_short = true) {
  auto* mutex = new std::mutex;
  (is_short ? Mutexes::all().taken : Mutexes::all().renewed).push_back(mutex);
  return *mutex;
}

// For a C function whose work is not to end the process: what `work` returns or throws, a problem in words or "". The text lasts until the
// next call in this thread.
template <class Work>
const char* problem_of(const Work& work) try {
  thread_local std::string problem;
  try {
    problem = work();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  return problem.c_str();
} catch (const std::exception&) {
  return "there is no memory for what went wrong";
}

// For one that says whether there was memory for its work.
template <class Work>
int done(const Work& work) try {
  work();
  return 1;
} catch (const std::exception&) {
  return 0;
}

// 2x3x4
inline std::string joined(const int64_t* sizes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; i++) text += (i ? "x" : "") + std::to_string(sizes[i]);
  return text;
}

// A size for a message, as msctx/tables.py writes it: both report a cap with the same figure.
inline std::string in_words(int64_t bytes) {
  double value = double(bytes);
  const char* unit = "bytes";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB", "PiB"})
    if (value >= 1024) value /= 1024, unit = larger;
  char text[64];
  std::snprintf(text, sizeof text, "%.4g %s", value, unit);
  return text;
}

}  // namespace msctx
