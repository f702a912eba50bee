# ruff: noqa
"""Calls that depend on something (never run)."""

import os
import sys

import mindspore as ms

if sys.argv[1:]:
    ms.set_context(device_target="GPU", mode=1)
elif sys.platform == "win32":
    ms.set_context(device_target="CPU", jit_level="O2")
else:
    ms.set_context(device_target="Ascend", mode=ms.PYNATIVE_MODE, enable_graph_kernel=True, jit_config={"jit_level": "O0"})
try:
    for threads in (1, 2):
        ms.set_context(runtime_num_threads=2)
except ValueError:
    ms.set_context(max_call_depth=500)
while True:
    ms.set_context(save_graphs=1)
    break
later = lambda: ms.set_context(op_timeout=1)
ms.set_context(deterministic="ON") if sys.argv else None
ms.set_context(max_device_memory="2GB")
ms.set_context(max_device_memory=sys.argv[1])
if __name__ == "__main__":
    ms.set_context(check_bprop=True)
    os.environ["MINDSPORE_DUMP_CONFIG"] = "dump.json"
