// Calls of Python's functions. Python's C functions are those of the process: the library is built for no version of it.
#include "glue/python.h"

#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "msctx/interface.h"

// Null where the process has no Python.
#define MSCTX_OF_PYTHON(result, name, ...) extern "C" __attribute__((weak)) result name(__VA_ARGS__)
MSCTX_OF_PYTHON(int, PyGILState_Ensure);
MSCTX_OF_PYTHON(void, PyGILState_Release, int);
MSCTX_OF_PYTHON(void*, Py_VaBuildValue, const char*, va_list);
MSCTX_OF_PYTHON(void*, PyObject_CallObject, void*, void*);
MSCTX_OF_PYTHON(void*, PyObject_GetAttrString, void*, const char*);
MSCTX_OF_PYTHON(const char*, PyUnicode_AsUTF8, void*);
MSCTX_OF_PYTHON(long, PyLong_AsLong, void*);
MSCTX_OF_PYTHON(void, Py_DecRef, void*);
MSCTX_OF_PYTHON(void*, PyErr_Occurred);
MSCTX_OF_PYTHON(void, PyErr_Fetch, void**, void**, void**);
MSCTX_OF_PYTHON(void, PyErr_Restore, void*, void*, void*);
MSCTX_OF_PYTHON(void, PyErr_WriteUnraisable, void*);
MSCTX_OF_PYTHON(int, Py_AddPendingCall, int (*)(void*), void*);

namespace msctx::glue {
namespace {

std::atomic<bool> has_ended{false};
PythonFunction warner = nullptr;

bool is_there() { return PyGILState_Ensure && !has_ended; }

struct PythonError {
  void *type, *value, *trace;
};

int raise_again(void* data) {
  const PythonError raised = *static_cast<PythonError*>(data);
  delete static_cast<PythonError*>(data);
  PyErr_Restore(raised.type, raised.value, raised.trace);
  return -1;
}

// What another thread raises nobody waits for: it is shown. Signals are the main thread's.
void put_off(void* function) {
  PythonError raised;
  PyErr_Fetch(&raised.type, &raised.value, &raised.trace);
  if (getpid() == gettid()) {
    auto* kept = new PythonError(raised);
    if (Py_AddPendingCall(raise_again, kept) == 0) return;
    delete kept;
  }
  PyErr_Restore(raised.type, raised.value, raised.trace);
  PyErr_WriteUnraisable(function);
}

}  // namespace

long call_python(PythonFunction function, long otherwise, const char* format, ...) {
  if (!function || !is_there()) return otherwise;
  const int state = PyGILState_Ensure();
  PythonError passing{};  // through torch's code, on its way to Python: it is nobody's here
  PyErr_Fetch(&passing.type, &passing.value, &passing.trace);
  va_list values;
  va_start(values, format);
  void* arguments = Py_VaBuildValue(format, values);  // a tuple
  va_end(values);
  void* answer = arguments ? PyObject_CallObject(function, arguments) : nullptr;
  long number = answer ? PyLong_AsLong(answer) : otherwise;
  if (PyErr_Occurred()) {
    number = otherwise;
    put_off(function);
  }
  if (answer) Py_DecRef(answer);
  if (arguments) Py_DecRef(arguments);
  PyErr_Restore(passing.type, passing.value, passing.trace);
  PyGILState_Release(state);
  return number;
}

std::string error_in_python() {
  if (!is_there()) return "";
  const int state = PyGILState_Ensure();
  std::string name;
  if (void* type = PyErr_Occurred())
    if (void* text = PyObject_GetAttrString(type, "__name__")) {
      if (const char* found = PyUnicode_AsUTF8(text)) name = found;
      Py_DecRef(text);
    }
  PyGILState_Release(state);
  return name;
}

bool warn(const std::string& text) { return call_python(warner, 0, "(y)", text.c_str()) != 0; }
void set_warner(PythonFunction wanted) { warner = wanted; }

}  // namespace msctx::glue

// The interpreter ends: threads that still compute may not wait for it.
MSCTX_API void msctx_leave_python() { msctx::glue::has_ended = true; }
