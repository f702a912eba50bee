// libhccl: what torch_npu looks up in it.

#include <cstdint>

#include "recorder.h"

extern "C" int HcclSetConfig(int config, int value) {
  if (config == 0) {
    CALLED("HCCL_DETERMINISTIC", value);
  } else {
    CALLED(config, value);
  }
  return 0;
}
