# ruff: noqa
"""The vocabulary of MindSpore 2.5 and later (never run)."""

import mindspore as ms
from mindspore import runtime
from mindspore.device_context.gpu import op_tuning
from mindspore.runtime import launch_blocking as block

ms.set_context(mode=ms.PYNATIVE_MODE, jit_config={"jit_level": "O1"})
ms.set_device("GPU", 1)
ms.set_deterministic(True)
ms.set_recursion_limit(2000)
ms.manual_seed(42)
ms.device_context.gpu.op_precision.conv_allow_tf32(False)
ms.device_context.ascend.op_precision.precision_mode("allow_mix_precision_bf16")
op_tuning.conv_fprop_algo(mode="winograd")
op_tuning.conv_dgrad_algo("algo_2")
ms.device_context.cpu.op_tuning.threads_num(4)
ms.runtime.set_memory(init_size="2GB", max_size="4GB", optimize_level="O1")
runtime.dispatch_threads_num(threads_num=4)
runtime.set_cpu_affinity(True)
block()
ms.set_context(max_device_memory="8GB", gpu_config={"conv_fprop_algo": "gemm", "conv_allow_tf32": False})
print(runtime.memory_allocated(), ms.device_context.gpu.device_count(), ms.get_context("mode"))
