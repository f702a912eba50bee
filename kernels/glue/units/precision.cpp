// Mixed precision.
#include "glue/autocasts.cpp"
#include "glue/precision.cpp"
#include "glue/precision_policy.cpp"
