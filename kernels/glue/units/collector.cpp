// What runs, and its inputs and outputs.
#include "glue/collector.cpp"
#include "glue/observed.cpp"
#include "glue/overflow.cpp"
#include "glue/rows.cpp"
