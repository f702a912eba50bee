"""Options of our own: what people need around MindSpore's options, and MindSpore has no word for."""

from msctx.options.kinds import Bool, Int
from msctx.options.option import Option

OPTIONS = (
    Option(
        name="seed",
        type=Int(0, 2**32 - 1),
        help="Seeds Python's random, NumPy and torch (every device) when the context is entered; workers of a torch DataLoader draw "
        "their seeds from torch's generator and so follow. The generators are left as they are at exit unless seed_scope is set.",
        source="msctx",
        example=0,
    ),
    Option(
        name="seed_scope",
        type=Bool,
        help="Saves the state of the generators of Python, NumPy and torch at entry and puts it back at exit, so that random "
        "numbers drawn inside do not change those drawn after.",
        source="msctx",
        example=True,
    ),
    Option(
        name="default_device",
        type=Bool,
        help="Makes tensors that name no device be created on the context's device (device_target, device_id). Off unless asked "
        "for: torch does it with a Python mode that costs some microseconds per call.",
        source="msctx",
        example=True,
    ),
    Option(
        name="deterministic_warn_only",
        type=Bool,
        help="With deterministic=ON: an operator that has no deterministic implementation warns instead of raising.",
        source="msctx",
        example=True,
    ),
    Option(
        name="fill_uninitialized_memory",
        type=Bool,
        help="With deterministic=ON torch fills new uninitialised tensors (NaN, or the largest integer), so that a program that "
        "reads them gives the same bits each time. ON implies it; false saves the fill where the program is known not to "
        "read them.",
        source="msctx",
        example=False,
    ),
    Option(
        name="strict",
        type=Bool,
        help="Turns every option that would be refused, is not built yet or is inert into an error before anything changes, and a "
        "switch that somebody else changed inside the scope into an error at exit. Without it each is a single warning.",
        source="msctx",
        example=True,
    ),
)
