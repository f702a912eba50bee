"""The options of set_context about the device, its memory and the time an operator may take (catalogue: system)."""

from msctx.options.kinds import Choice, Int, Memory, MemoryBetween, Size
from msctx.options.option import Option

GB = 2**30


# fmt: off
OPTIONS = (
    Option("device_id", Int(0, 4095), default=0, example=1, also=("set_device.device_id",),
        help="Which device of the kind device_target becomes the current one: the number in cuda:1 or npu:1. There is only "
             "one CPU device, so there any other number than 0 has no effect."),
    Option("device_target", Choice({
            "CPU": "the processor of this machine, torch's cpu", "GPU": "an NVIDIA GPU, torch's cuda",
            "Ascend": "an Ascend NPU, torch_npu's npu",
        }, {
            "Davinci": "Ascend", "cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "ascend": "Ascend", "npu": "Ascend",
        }), example="GPU", also=("set_device.device_target",),
        help="The kind of device that work is meant for (Davinci is the old name of Ascend). It gives ctx.device and "
             "decides whose plan decides when an option is honoured on one device and not on another."),
    Option("max_device_memory", Memory, default=Size(1024 * GB), example="4GB", also=("runtime.set_memory.max_size",),
        help="The most memory that this process may take on the device through torch's allocator; asking for more raises "
             "torch.OutOfMemoryError. An inner scope cannot loosen the cap of an outer one."),
    Option("variable_memory_max_size", MemoryBetween('a size of at most 31GB, such as "8GB"', maximum=31 * GB), example="8GB",
        devices=("cuda", "ascend"), replaced_by="max_device_memory",
        help="Formerly the size of the memory for a model's parameters. MindSpore deprecates it in favour of "
             "max_device_memory, which caps parameters and everything else together; torch has no memory for parameters "
             "alone."),
    Option("mempool_block_size", MemoryBetween('a size of 1GB or more, such as "2GB"', minimum=GB), default=Size(GB), example="4GB",
        defaults={"runtime": Size(2 * GB)}, also=("runtime.set_memory.increase_size",),
        help="The step by which the pool of device memory grows: bigger blocks mean fewer requests to the driver and less "
             "fragmentation, but more memory held back. torch's allocators follow it only roughly, since a large tensor "
             "still gets a segment of its own. It has no effect on a CPU."),
    Option("op_timeout", Int(0, 2**32 - 1), default=900, example=60, also=("device_context.ascend.op_debug.execute_timeout",),
        help="Seconds that a single operator may run before a watchdog prints the stacks and ends the task; 0 leaves the "
             "limits of torch and the driver as they are."),
)
# fmt: on
