# ruff: noqa
"""What can be known of a value without running anything, and what cannot (never run)."""

import os

import mindspore as ms

DEVICE = "GPU"
MEMORY: int = 4
TF32 = False
GPU = {"conv_allow_tf32": TF32, "conv_fprop_algo": "winograd", "conv_dgrad_algo": os.environ.get("ALGO")}
COMMON = dict(save_graphs=ms.context.STRICT, save_graphs_path="./graphs")
CONFIG = {"mode": ms.GRAPH_MODE, "device_target": DEVICE, **COMMON}
CHANGED = {"runtime_num_threads": 4}
CHANGED["runtime_num_threads"] = os.cpu_count()
NESTED = {"run": {"op_timeout": 30}, "limits": [100, 200]}
twice = 1
twice = twice + 1
for loop in range(3):
    pass
print(CONFIG, len(GPU), NESTED["limits"])

ms.set_context(
    **CONFIG,
    gpu_config=GPU,
    max_device_memory=f"{MEMORY}GB",
    compile_cache_path="./cache" + "/graphs",
    enable_compile_cache=True,
    op_timeout=NESTED["run"]["op_timeout"],
    max_call_depth=NESTED["limits"][-1] * 10,
    graph_kernel_flags="--opt_level=2",
)
ms.set_context(**CHANGED)
ms.set_context(device_id=twice, debug_level=loop, **vars(os))
ms.set_context("reproducible", *[1])
ms.set_context(ascend_config={"ge_options": {"global": {"ge.opSelectImplmode": "high_precision", "a b": 'say "hi": #1'}}})


def main(threads, check=True):
    local = True
    ms.set_context(runtime_num_threads=threads, check_bprop=check, precompile_only=local)
