// The intrinsics of AVX-512; MSCTX_EMULATED_VECTORS has those that are used computed in software.
#pragma once

#ifndef MSCTX_EMULATED_VECTORS
#include <immintrin.h>
#else
#include "software.h"
#endif
