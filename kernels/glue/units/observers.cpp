// Who is told what runs, and where in the program.
#include "glue/deterministic_except.cpp"
#include "glue/install.cpp"
#include "glue/readers.cpp"
#include "glue/running.cpp"
#include "glue/watch.cpp"
