// Convolutions by Fourier transforms.
#include "cpu/conv_fft.cpp"
#include "cpu/conv_fft_tiling.cpp"
