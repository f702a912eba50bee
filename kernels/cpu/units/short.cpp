// Algorithms that compile in a moment.
#include "cpu/conv_algo_0.cpp"
#include "cpu/conv_direct.cpp"
#include "cpu/conv_implicit_gemm.cpp"
#include "cpu/conv_windows.cpp"
#include "cpu/reference.cpp"
