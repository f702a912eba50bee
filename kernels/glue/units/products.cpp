// Matrix products, as PyTorch's dispatcher calls them.
#include "glue/operators.cpp"
#include "glue/product.cpp"
#include "glue/routes.cpp"
