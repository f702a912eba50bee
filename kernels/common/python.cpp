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
  void* (*attribute)(void*, const char*) = found<void*(void*, const char*)>("PyObject_GetAttrString");
  const char* (*as_text)(void*) = found<const char*(void*)>("PyUnicode_AsUTF8");
  bool is_whole = attribute && as_text && ensure && release && build && call && as_long && error && forget && fetch && restore && write && add_pending;
};
const Api& api() {
  static const Api one;
  return one;
}

struct PythonError {
  void *type, *value, *trace;
};

int raise_again(void* data) {
  const PythonError raised = *static_cast<PythonError*>(data);
  delete static_cast<PythonError*>(data);
  api().restore(raised.type, raised.value, raised.trace);
  return -1;
}

// What another thread raises nobody waits for: it is shown. Signals are the main thread's.
void put_off(const Api& python, void* function) {
  PythonError raised;
  python.fetch(&raised.type, &raised.value, &raised.trace);
  if (getpid() == gettid()) {
    auto* kept = new PythonError(raised);
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
  PythonError passing{};  // through torch's code, on its way to Python: it is nobody's here
  python.fetch(&passing.type, &passing.value, &passing.trace);
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
  python.restore(passing.type, passing.value, passing.trace);
  python.release(state);
  return number;
}

std::string error_in_python() {
  const Api& python = api();
  if (!python.is_whole || has_ended) return "";
  const int state = python.ensure();
  std::string name;
  if (void* type = python.error())
    if (void* text = python.attribute(type, "__name__")) {
      if (const char* found = python.as_text(text)) name = found;
      python.forget(text);
    }
  python.release(state);
  return name;
}

}  // namespace msctx

// The interpreter ends: threads that still compute may not wait for it.
MSCTX_API void msctx_leave_python() { msctx::has_ended = true; }
