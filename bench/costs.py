"""What msctx itself costs: importing it, entering and leaving contexts, reading options, and calls of the smallest operators.

python bench/costs.py     # measures, and writes the table into the documentation
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import date
from functools import partial
from typing import Any

import contest
import summary
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import msctx
from msctx.options import OPTIONS, make_layer
from msctx.options.yaml_json_ini import parse

TEN = {
    "deterministic": "ON",
    "deterministic_warn_only": False,
    "fill_uninitialized_memory": True,
    "runtime_num_threads": 2,
    "pynative_synchronize": True,
    "max_call_depth": 500,
    "device_target": "CPU",
    "device_id": 0,
    "default_device": True,
    "strict": False,
}
NAMES = [name for name, option in OPTIONS.items() if "." not in name and not option.names_file][:30]
TEXT = "context:\n" + "".join(f"  {name}: {json.dumps(OPTIONS[name].example)}\n" for name in NAMES)
IMPORT = """
import time
begun = time.perf_counter()
import torch
loaded = time.perf_counter()
import msctx
print(loaded - begun, time.perf_counter() - loaded)
"""
CONVOLUTION = """
import timeit, torch
x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
call = lambda: torch.nn.functional.conv2d(x, w)
if {loaded}:
    import msctx
    with msctx.context(conv_fprop_algo="gemm"):
        call()
torch.set_num_threads(1)
with torch.no_grad():
    print(min(timeit.repeat(call, number=2000, repeat=8)) / 2000)
"""


def middle(call: Callable[[], Any], seconds: float) -> str:
    """Median and quartiles of the calls in some seconds."""
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 100:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    low, median, high = statistics.quantiles(times[len(times) // 10 :], n=4)
    return f"{median:.1f} µs (quartiles {low:.1f} to {high:.1f})"


def fastest(call: Callable[[], Any], *scopes: AbstractContextManager[Any], number: int, repeat: int) -> float:
    """Microseconds of a call under scopes, in the fastest of some turns."""
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        return min(timeit.repeat(call, number=number, repeat=repeat, timer=time.thread_time)) / number * 1e6


def of_processes(code: str, count: int) -> list[float]:
    """The median of each number that processes print."""
    found = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(count)]
    return [statistics.median(map(float, each)) for each in zip(*(done.stdout.split() for done in found), strict=True)]


def enter(context: Any) -> None:
    with context:
        pass


def read() -> None:
    document = parse(TEXT, "x.yaml")
    make_layer(document.data["context"], "x.yaml", document.under("context"))


def products() -> list[float]:
    """Microseconds of the smallest `mm` outside, then in turns, as in the table: under no policy, torch's autocast, and policies."""
    x = torch.randn(2, 2)
    low = x.bfloat16()

    def us(scope: Any, tensor: torch.Tensor) -> float:
        return fastest(lambda: torch.mm(tensor, tensor), scope, torch.no_grad(), number=2000, repeat=3)

    before, autocast = us(nullcontext(), x), torch.autocast("cpu", torch.bfloat16)
    mixed, full = msctx.context(precision_mode="allow_mix_precision_bf16"), msctx.context(precision_mode="force_fp32")
    in_bfloat16, cast = [(nullcontext(), low), (autocast, low), (mixed, low)], [(autocast, x), (mixed, x)]
    turns = [[us(*case) for case in (*in_bfloat16, *cast, (nullcontext(), x), (full, x))] for _ in range(7)]
    return [before, *map(statistics.median, zip(*turns, strict=True))]


class Empty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def modules() -> list[float]:
    """Microseconds of the call of an empty module, in a chain of ten: outside, under hooks, beside an observer of another module
    and of this one, under a rule of dtypes."""
    x, net, other = torch.ones(1), nn.Sequential(*(Empty() for _ in range(10))), nn.Sequential(Empty())
    hooks = register_module_forward_pre_hook, partial(register_module_forward_hook, always_call=True)
    us = partial(fastest, lambda: net(x), number=200, repeat=100)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write("*::InputDtype:bfloat16,bfloat16,OutputDtype:bfloat16\n")
        file.flush()
        found = [us(), us(*(register(lambda *_: None) for register in hooks))]
        found += (us(msctx.context(op_timeout=1000).watch(each)) for each in (other, net))
        found.append(us(msctx.context(customize_dtypes=file.name).watch(net)))
    return [each / 11 for each in found]


def table(seconds: float = 1.0, processes: int = 9) -> list[str]:
    torch.set_num_threads(1)
    mm, calls = products(), modules()
    torch_s, msctx_s = of_processes(IMPORT, processes)
    plain, loaded = (of_processes(CONVOLUTION.format(loaded=loaded), (processes + 1) // 2)[0] * 1e6 for loaded in (False, True))
    seed = fastest(lambda: torch.manual_seed(0), number=100, repeat=5)
    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    with msctx.context(conv_fprop_algo="implicit_gemm"), torch.no_grad():
        under = middle(lambda: torch.nn.functional.conv2d(x, w), seconds)

    def micro(each: Iterable[float]) -> str:
        return ", ".join(f"{us:.1f} µs" for us in each)

    within = {
        "enter and leave a context with 10 options": lambda: enter(msctx.context(**TEN)),
        f"the same and a seed (`torch.manual_seed` alone: {seed:.0f} µs)": lambda: enter(msctx.context(**TEN, seed=0)),
        "enter and leave a context with nothing set": lambda: enter(msctx.context()),
        'call a function decorated with `deterministic="ON"`': msctx.context(deterministic="ON")(lambda: None),
        "read and check a YAML file of 30 options": read,
    }
    pairs = {what: middle(call, seconds) for what, call in within.items()} | {
        f"`import msctx` after `import torch` ({torch_s * 1e3:.0f} ms)": f"{msctx_s * 1e3:.0f} ms",
        "the smallest `conv2d` outside every context: without the native core, with it loaded": micro((plain, loaded)),
        "the same by `implicit_gemm`": under,
        "the smallest `mm` in bfloat16: outside, under `torch.autocast`, under `allow_mix_precision_bf16`": micro(mm[1:4]),
        "the same of float32, cast twice: `torch.autocast`, the mode": micro(mm[4:6]),
        "the same in float32: before and after a mode was first used, under `force_fp32`": micro((mm[0], *mm[6:])),
        "call an empty module: outside, with two empty global hooks of PyTorch, beside an observer without and with its name, "
        "in a rule for it": micro(calls),
    }
    where = f"Measured on {contest.machine()['cpu']}, Python {platform.python_version()}, {date.today()}"
    return summary.table(("what", "median"), pairs.items(), f"{where}; one process, without A/A: orders of magnitude only.")


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    summary.into_docs([{"bench": table()}])


if __name__ == "__main__":
    main()
