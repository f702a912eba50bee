// Memory of the CPU, and which kernels PyTorch has in force.
#include "glue/allocator.cpp"
#include "glue/registered.cpp"
