// A call of an algorithm.
#include "common/call.cpp"
#include "common/conv_run.cpp"
#include "common/isa.cpp"
#include "common/magnitudes.cpp"
#include "common/standalone.cpp"
