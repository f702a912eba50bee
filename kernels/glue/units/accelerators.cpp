// NVIDIA and Ascend.
#include "glue/cuda.cpp"
#include "glue/cuda_depthwise.cpp"
#include "glue/cudnn.cpp"
#include "glue/npu.cpp"
