"""What msctx itself costs: importing it, entering and leaving contexts, reading options, and calls of the smallest operators.

python bench/costs.py     # measures, and writes the table into the documentation
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import contest
import summary
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import msctx
from msctx.options import OPTIONS, make_layer
from msctx.options.yamlfile import parse

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
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
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


def micro(call: Callable[[], Any]) -> str:
    """Median and quartiles of a second."""
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < 1 or len(times) < 100:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    low, middle, high = statistics.quantiles(times[len(times) // 10 :], n=4)
    return f"{middle:.1f} µs (quartiles {low:.1f} to {high:.1f})"


def of_processes(code: str, count: int = 9) -> list[float]:
    """The median of each number that processes print."""
    found = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(count)]
    return [statistics.median(map(float, each)) for each in zip(*(done.stdout.split() for done in found), strict=True)]


def entered(**options: Any) -> Callable[[], None]:
    def once() -> None:
        with msctx.context(**options):
            pass

    return once


def validated() -> None:
    document = parse(TEXT, "x.yaml")
    make_layer(document.data["context"], "x.yaml", document.under("context"))


def products() -> dict[str, float]:
    """Microseconds of the smallest `mm` outside, under torch's autocast, and under policies: turns, the fastest of each."""
    x = torch.randn(2, 2)
    low = x.bfloat16()

    def us(scope: Any, tensor: torch.Tensor) -> float:
        with scope, torch.no_grad():
            return min(timeit.repeat(lambda: torch.mm(tensor, tensor), number=2000, repeat=3)) / 2000 * 1e6

    before = us(nullcontext(), x)
    mixed, full = msctx.context(precision_mode="allow_mix_precision_bf16"), msctx.context(precision_mode="force_fp32")
    cases = {
        "outside": (nullcontext(), x),
        "bf16 outside": (nullcontext(), low),
        "autocast, no cast": (torch.autocast("cpu", torch.bfloat16), low),
        "policy, no cast": (mixed, low),
        "autocast, two casts": (torch.autocast("cpu", torch.bfloat16), x),
        "policy, two casts": (mixed, x),
        "policy that leaves it": (full, x),
    }
    turns = [{name: us(*case) for name, case in cases.items()} for _ in range(7)]
    return {"before": before} | {name: statistics.median(turn[name] for turn in turns) for name in cases}


class Empty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def modules() -> dict[str, float]:
    """Microseconds of the call of an empty module: the fastest of many short turns, in a chain of ten."""
    x, net, other = torch.ones(1), nn.Sequential(*(Empty() for _ in range(10))), nn.Sequential(Empty())

    def us(*scopes: Any) -> float:
        with ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(scope)
            return min(timeit.repeat(lambda: net(x), number=200, repeat=100, timer=time.thread_time)) / 200 / 11 * 1e6

    hooks = register_module_forward_pre_hook, partial(register_module_forward_hook, always_call=True)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write("*::InputDtype:bfloat16,bfloat16,OutputDtype:bfloat16\n")
        file.flush()
        return {
            "outside": us(),
            "hooks": us(*(register(lambda *_: None) for register in hooks)),
            "no name": us(msctx.context(op_timeout=1000).watch(other)),
            "named": us(msctx.context(op_timeout=1000).watch(net)),
            "ruled": us(msctx.context(customize_dtypes=file.name).watch(net)),
        }


def table() -> list[str]:
    torch.set_num_threads(1)
    mm, calls = products(), modules()
    torch_s, msctx_s = of_processes(IMPORT)
    plain, loaded = (of_processes(CONVOLUTION.format(loaded=loaded), 5)[0] * 1e6 for loaded in (False, True))
    seed = min(timeit.repeat(lambda: torch.manual_seed(0), number=100, repeat=5)) * 1e4
    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    with msctx.context(conv_fprop_algo="implicit_gemm"), torch.no_grad():
        under = micro(lambda: torch.nn.functional.conv2d(x, w))
    pairs = {
        "enter and leave a context with 10 options": micro(entered(**TEN)),
        f"the same and a seed (`torch.manual_seed` alone: {seed:.0f} µs)": micro(entered(**TEN, seed=0)),
        "enter and leave a context with nothing set": micro(entered()),
        'call a function decorated with `deterministic="ON"`': micro(msctx.context(deterministic="ON")(lambda: None)),
        "read and check a YAML file of 30 options": micro(validated),
        f"`import msctx` after `import torch` ({torch_s * 1e3:.0f} ms)": f"{msctx_s * 1e3:.0f} ms",
        "the smallest `conv2d` outside every context: without the native core, with it loaded": f"{plain:.1f} µs, {loaded:.1f} µs",
        "the same by `implicit_gemm`": under,
        "the smallest `mm` in bfloat16: outside, under `torch.autocast`, under `allow_mix_precision_bf16`": ", ".join(
            f"{mm[name]:.1f} µs" for name in ("bf16 outside", "autocast, no cast", "policy, no cast")
        ),
        "the same of float32, cast twice: `torch.autocast`, the mode": ", ".join(
            f"{mm[name]:.1f} µs" for name in ("autocast, two casts", "policy, two casts")
        ),
        "the same in float32: before and after a mode was first used, under `force_fp32`": ", ".join(
            f"{mm[name]:.1f} µs" for name in ("before", "outside", "policy that leaves it")
        ),
        "call an empty module: outside, with two empty global hooks of PyTorch, beside an observer without and with its name, "
        "in a rule for it": ", ".join(f"{took:.1f} µs" for took in calls.values()),
    }
    where = f"Measured on {contest.machine()['cpu']}, Python {platform.python_version()}"
    last = f"{where}; one process, without A/A: orders of magnitude only."
    return [*summary.markdown(("what", "median"), pairs.items()), "", last]


if __name__ == "__main__":
    summary.into_docs([{"bench": table()}])
