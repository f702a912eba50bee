// Calls of Python's functions out of a convolution, in its thread. What one of them raises cannot pass through torch's code (Ctrl-C, a
// signal's handler): it is raised once that has returned to Python, in the main thread; until then every further call ends with it.
#pragma once

#include <string>

namespace msctx::glue {

// A function of Python's, which keeps it alive; nullptr: none.
using PythonFunction = void*;

// Its answer, a number; `otherwise` where it raised, where there is none, and once the interpreter ends. No lock of ours may be held, but
// one that is only ever tried. `format` is that of Py_BuildValue, for a tuple of arguments.
long call_python(PythonFunction, long otherwise, const char* format, ...);

// The type of the exception of Python's that is on its way through this thread's code; "": none.
std::string error_in_python();

// Tells Python, in this thread; true: Python wants an error (warnings turned into errors). Not to be called with a lock held.
bool warn(const std::string& text);
void set_warner(PythonFunction);

}  // namespace msctx::glue
