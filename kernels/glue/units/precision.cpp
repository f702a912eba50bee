// Mixed precision; memory of the CPU; which kernels PyTorch has in force.
#include "glue/allocator.cpp"
#include "glue/autocasts.cpp"
#include "glue/precision.cpp"
#include "glue/precision_policy.cpp"
#include "glue/registered.cpp"
