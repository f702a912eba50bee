// Calls of Python's functions. Python's C functions are those of the process: the library is built for no version of it.
#include "msctx/python.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "msctx/api.h"

namespace msctx {
namespace {

std::atomic<bool> has_ended{false};

struct Api {
  template <class Function>
  static Function* found(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }
  int (*ensure)() = found<int()>("PyGILState_Ensure");
  void (*release)(int) = found<void(int)>("PyGILState_Release");
  void* (*build)(const char*, va_list) = found<void*(const char*, va_list)>("Py_VaBuildValue");
  void* (*call)(void*, void*) = found<void*(void*, void*)>("PyObject_CallObject");
  long (*as_long)(void*) = found<long(void*)>("PyLong_AsLong");
  void* (*error)() = found<void*()>("PyErr_Occurred");
  void (*forget)(void*) = found<void(void*)>("Py_DecRef");
  void (*fetch)(void**, void**, void**) = found<void(void**, void**, void**)>("PyErr_Fetch");
  void (*restore)(void*, void*, void*) = found<void(void*, void*, void*)>("PyErr_Restore");
  void (*write)(void*) = found<void(void*)>("PyErr_WriteUnraisable");
  int (*add_pending)(int (*)(void*), void*) = found<int(int (*)(void*), void*)>("Py_AddPendingCall");
  bool is_whole = ensure && release && build && call && as_long && error && forget && fetch && restore && write && add_pending;
};
const Api& api() {
  static const Api one;
  return one;
}

struct Raised {
  void *type, *value, *trace;
};

int raise_again(void* data) {
  const Raised raised = *static_cast<Raised*>(data);
  delete static_cast<Raised*>(data);
  api().restore(raised.type, raised.value, raised.trace);
  return -1;
}

// What another thread raises nobody waits for: it is shown. Signals are the main thread's.
void put_off(const Api& python, void* function) {
  Raised raised;
  python.fetch(&raised.type, &raised.value, &raised.trace);
  if (getpid() == gettid()) {
    auto* kept = new Raised(raised);
    if (python.add_pending(raise_again, kept) == 0) return;
    delete kept;
  }
  python.restore(raised.type, raised.value, raised.trace);
  python.write(function);
}

}  // namespace

long call_python(PythonFunction function, long otherwise, const char* format, ...) {
  const Api& python = api();
  if (!function || !python.is_whole || has_ended) return otherwise;
  const int state = python.ensure();
  va_list values;
  va_start(values, format);
  void* arguments = python.build(format, values);  // a tuple
  va_end(values);
  void* answer = arguments ? python.call(function, arguments) : nullptr;
  long number = answer ? python.as_long(answer) : otherwise;
  if (python.error()) {
    number = otherwise;
    put_off(python, function);
  }
  if (answer) python.forget(answer);
  if (arguments) python.forget(arguments);
  python.release(state);
  return number;
}

}  // namespace msctx

// The interpreter ends: threads that still compute may not wait for it.
MSCTX_API void msctx_leave_python() { msctx::has_ended = true; }
