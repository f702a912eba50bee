// Convolutions by Winograd's transforms.
#include "cpu/conv_winograd.cpp"
#include "cpu/conv_winograd_nonfused.cpp"
