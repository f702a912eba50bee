// Winograd on AMX.
#include "cpu/amx/conv_tiles_winograd.cpp"
#include "cpu/amx/conv_tiles_winograd_nonfused.cpp"
