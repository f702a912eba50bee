// Convolutions, as PyTorch's dispatcher calls them.
#include "glue/convolution.cpp"
#include "glue/decisions.cpp"
#include "glue/kept_weights.cpp"
