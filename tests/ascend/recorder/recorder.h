// What all parts share: the log of the calls that reach CANN, and the faults that tests have some of them meet.

#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

namespace recorder {

void write(const std::string& line);

// The error code that a test wants of this call; 0: none.
int fault(const char* name);

template <class... Values>
std::string text(const char* name, const Values&... values) {
  [[maybe_unused]] const char* between = "";
  std::ostringstream line;
  line << name << '(';
  ((line << between << values, between = ", "), ...);
  line << ')';
  return line.str();
}

template <class... Values>
void log(const char* name, const Values&... values) {
  write(text(name, values...));
}

// Logs a call; its error code is that of fault().
template <class... Values>
int called(const char* name, const Values&... values) {
  const int code = fault(name);
  write(text(name, values...) + (code ? " fails with " + std::to_string(code) : ""));
  return code;
}

inline std::string setting(const char* name, const char* otherwise) {
  const char* found = std::getenv(name);
  return found ? found : otherwise;
}

}  // namespace recorder

// At the start of a function of C: logs the call with these arguments, and returns where a fault is wanted.
#define CALLED(...) \
  if (const int code = recorder::called(__func__ __VA_OPT__(, ) __VA_ARGS__)) return code
