// Mixed precision; memory of the CPU; which kernels PyTorch calls. The one with most of torch's headers stands first.
#include "glue/precision_policy.cpp"
#include "glue/allocator.cpp"
#include "glue/precision.cpp"
#include "glue/registered.cpp"
