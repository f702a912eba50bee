// The process around the kernels: forks, and messages to Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "msctx/python.h"

namespace msctx {

// How often this process, or one that it comes from, was forked after the library was loaded. OpenMP's threads did not come along: waiting
// for them would never end.
extern int64_t forks;

// The kernel's number of this thread. It is asked once, since that is a system call.
uint64_t thread_id();

// A mutex for the life of the process that a forked child finds free. A fork waits for those that are held for short; the others are
// renewed in the child, since the thread that held them did not come along.
std::mutex& fork_safe_mutex(bool is_short = true);

// For what threads share: it is never destroyed, since some may still compute while the process ends.
template <class T>
T& immortal() {
  return *new T();
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

// Tells Python, in this thread; true: Python wants an error (warnings turned into errors). Not to be called with a lock held.
bool warn(const std::string& text);
void set_warner(PythonFunction);
// A size for a message, as msctx/tables.py writes it: both report a cap with the same figure.
std::string in_words(int64_t bytes);

}  // namespace msctx
