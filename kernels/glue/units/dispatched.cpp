// Convolutions and matmuls, as PyTorch's dispatcher calls them.
#include "glue/convolution.cpp"
#include "glue/decisions.cpp"
#include "glue/kept_weights.cpp"
#include "glue/operators.cpp"
#include "glue/product.cpp"
#include "glue/routes.cpp"
