# ruff: noqa
"""What msctx does not take (never run)."""

import mindspore as ms

ms.set_context(mode="GRAHP_MODE", jit_config={"jit_level": "O0"}, save_graphs=7)
ms.set_context(gpu_config={"conv_fprop_algo": "winnograd", "conv_allow_tf33": True}, ascend_config=5)
ms.set_context(env_config_path="./there/is/no.json", enable_dump=True, save_dump_path=".")
ms.set_context(ascend_config={"ge_options": {"global": {"ge.x": 1}}})
ms.set_context(runtime_num_threads=4)
ms.set_context(runtime_num_threads="many")
ms.set_context(ascend_config={"precision_mode": "force_fp16"}, session={"precision_mode_v2": "fp16"})
ms.set_device()
ms.set_seed(1, 2)
ms.set_seed(*[1])
ms.runtime.launch_blocking(True)
ms.runtime.dispatch_threads_num(a=1, b=2)
ms.runtime.set_kernel_launch_group(thread_num=2)
ms.device_context.ascend.op_debug.debug_option("oom")
ms.set_context(jit_config={"jit_level": "O3", "jit_levl": "O1"}, infer_boost="on")
ms.set_ps_context(enable_ps=True)
ms.set_offload_context(offload_config={"offload_param": "cpu"})
ms.reset_auto_parallel_context()
ms.runtime.Stream(), ms.runtime.synchronize(), ms.get_context("mode"), ms.runtime.empty_cache()
