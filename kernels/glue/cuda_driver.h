// The CUDA driver, found by name in the library that Python has opened: contexts and launches, for kernels of our own.
#pragma once

namespace msctx::glue {

// "" or what is missing.
const char* find_driver(const char* library);
bool has_driver();

// Has the device's primary context be current in this thread. torch does that when it first needs to, which for device 0 may be never
// in a thread that only runs what others have prepared. 0, or a CUresult.
int bind_context(int device);
// cuLaunchKernel on a line of blocks of a line of threads. 0, or a CUresult.
int launch(void* function, unsigned grid, unsigned threads, void* stream, void** arguments);
// Whether its tensor cores have TF32: from A100 on. Yes, where there is no driver to ask.
bool has_tf32(int device);

}  // namespace msctx::glue
