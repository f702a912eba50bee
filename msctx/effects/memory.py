"""max_device_memory: a cap in bytes."""

from msctx.effects.base import Outcome, Want, approximated, effect, not_built


@effect("max_device_memory")
def max_device_memory(want: Want) -> Outcome:
    """The tightest of the caps in force, outer scopes' included, goes to the caching allocator."""
    if want.device == "cpu":
        return not_built("the memory pool")
    cap = min(setting.value for setting in want.settings.all(want.option.name, want.device))
    switch = {"cuda": "torch.cuda.memory_cap", "ascend": "torch.npu.memory_cap"}[want.device]
    return approximated({switch: cap}, "counts what torch's caching allocator holds; the device context itself is not counted")
