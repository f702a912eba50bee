// Who is told what runs, where in the program, and with which inputs and outputs.
#include "glue/collector.cpp"
#include "glue/deterministic_except.cpp"
#include "glue/install.cpp"
#include "glue/observed.cpp"
#include "glue/overflow.cpp"
#include "glue/python.cpp"
#include "glue/readers.cpp"
#include "glue/watch.cpp"
