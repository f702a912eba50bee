"""What it costs to see every operator with its name, inputs and outputs and to do nothing with them, by the ways that PyTorch offers.

What each way adds to the CPU time of a small operator and of a training step, on one thread, in turns in one process; and what it
sees of a small program. The first contender is the step without any again (A/A). A figure is the median over the rounds of a process;
of several processes the table shows the median and the range.

    python bench/ways_to_collect.py --processes 3 --out bench/results/NAME-ways-to-collect.json
    python bench/ways_to_collect.py --docs bench/results/NAME-ways-to-collect.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import contest
import networks
import observers
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from msctx.native import build, build_spec
from msctx.observers import collector

AGAIN = observers.AGAIN
CALLBACK, COLLECTOR, ROWS = "`at::RecordFunction`: a callback", "our collector, no rows", "our collector, rows to Python"
BOXED, DISPATCH, FUNCTION = "a boxed kernel", "`TorchDispatchMode`", "`TorchFunctionMode`"
CALLS, ROUNDS = 1000, 100
BUSY = 1.5
"""The load average above which somebody else ran: our own process makes 1."""
Kept = list[tuple[str, float]]
"""Of each operator that was seen: its name, and the first value of its first argument as it was before."""


@cache
def native() -> ctypes.CDLL:
    """The ways in C++, built with the flags of msctx's own."""
    spec, name = build_spec.spec_of("library", "", None), "glue/ways_to_collect.cpp"
    flags = next(unit.flags for unit in spec.units if unit.source.startswith("glue/"))
    files = {name: Path(__file__).with_suffix(".cpp").read_bytes()}
    spec = replace(spec, product="ways", files=files, units=(build_spec.Unit(name, flags),))
    found = ctypes.CDLL(str(build._obtain(spec).path))
    found.ways_kept.restype = ctypes.c_void_p
    return found


def in_cpp(switch: str) -> Callable[[Kept | None], AbstractContextManager[Any]]:
    @contextmanager
    def scope(kept: Kept | None = None) -> Iterator[None]:
        turn = getattr(native(), switch)
        native().ways_keep(kept is not None)
        turn(1)
        try:
            yield
        finally:
            turn(0)
            native().ways_keep(0)
            if kept is not None:  # a few bytes, never freed
                text = ctypes.string_at(native().ways_kept()).decode()
                kept += [(name, float(first)) for name, _, first in (line.rpartition(" ") for line in text.splitlines())]

    return scope


class Rows(observers.Forgets):
    def __init__(self, kept: Kept) -> None:
        super().__init__(inputs=1, outputs=1, statistics=1)
        self.kept = kept

    def take(self, rows: list[collector.Row]) -> None:
        self.kept += [(row["operator"], row["inputs"][0].get("max", 0.0) if row["inputs"] else 0.0) for row in rows]


def collecting(**asked: int) -> Callable[[Kept | None], AbstractContextManager[Any]]:
    @contextmanager
    def scope(kept: Kept | None = None) -> Iterator[None]:
        collector.put("bench", observers.Forgets(**asked) if kept is None else Rows(kept))
        try:
            yield
        finally:
            collector.put("bench", None)

    return scope


class _Keeps:
    def __init__(self, kept: Kept | None = None) -> None:
        super().__init__()
        self.kept = kept

    def see(self, name: str, args: tuple[Any, ...]) -> None:
        if self.kept is not None:
            is_read = args and type(args[0]) is torch.Tensor and args[0].numel() == 1
            self.kept.append((name, float(args[0].detach().flatten()[0]) if is_read else 0.0))


class Dispatch(_Keeps, TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see(func._schema.name, args)
        return func(*args, **(kwargs or {}))


class Function(_Keeps, TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see(func.__name__, args)
        return func(*args, **(kwargs or {}))


WAYS: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    CALLBACK: in_cpp("ways_callback"),
    COLLECTOR: collecting(),
    ROWS: collecting(inputs=1, outputs=1),
    BOXED: in_cpp("ways_boxed"),
    DISPATCH: Dispatch,
    FUNCTION: Function,
}


def operators() -> dict[str, Callable[[], object]]:
    x, bias = torch.ones(8, 8), torch.ones(8)

    def many(call: Callable[[], object]) -> Callable[[], object]:
        def step() -> None:
            for _ in range(CALLS):
                call()

        return step

    return {"`add` of 8 x 8": many(lambda: torch.add(x, x)), "`addmm` of 8 x 8": many(lambda: torch.addmm(bias, x, x))}


def networks_() -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    resnet = observers.step_of(networks.resnet50(), torch.randn(1, 3, 64, 64))
    return {"ResNet-50, batch 1, 64 x 64": resnet, observers.TRANSFORMER: observers.transformer()}


def measured(rounds: int = ROUNDS) -> dict[str, dict[str, dict[str, float]]]:
    torch.set_num_threads(1)
    native()
    scopes = {AGAIN: nullcontext, **WAYS}

    def nanoseconds(turns: observers.Turns) -> dict[str, float]:
        none = statistics.median(plain for _, plain in turns[AGAIN])
        added = {name: statistics.median(own - plain for own, plain in pairs) for name, pairs in turns.items()}
        return {name: seconds / CALLS * 1e9 for name, seconds in {"none": none, **added}.items()}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = {name: observers.in_turns(step, scopes, rounds) for name, step in operators().items()}
        large = {name: observers.in_turns(step, scopes, min(rounds, 15)) for name, step in networks_().items()}
    return {
        "ns": {name: nanoseconds(turns) for name, turns in small.items()},
        "ratios": {name: observers.ratios(turns) for name, turns in large.items()},
    }


SIGHTS: Mapping[str, Callable[[Kept], bool]] = {
    "forward": lambda kept: "addmm" in names(kept),
    "`linear` by name": lambda kept: "linear" in names(kept),
    "backward": lambda kept: "threshold_backward" in names(kept),
    "optimizer": lambda kept: "addcdiv_" in names(kept),
    "other threads": lambda kept: "tanh" in names(kept),
    "inputs before they change": lambda kept: any(name.endswith("sub_") and first == 3.0 for name, first in kept),
    "calls of compiled code": lambda kept: "bmm" in names(kept),
}


def names(kept: Kept) -> set[str]:
    return {name.rpartition("::")[2] for name, _ in kept}


def sights() -> dict[str, dict[str, str]]:
    """Way → what of a program it sees, and what becomes of compiled code that there was before."""
    from torch._inductor.compile_fx import compile_fx

    made = ran = 0

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        nonlocal made
        made += 1
        inner = compile_fx(graph, inputs)

        def run(*args: Any) -> Any:
            nonlocal ran
            ran += 1
            return inner(*args)

        return run

    @torch.compile(backend=backend)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x, x) + 1

    x = torch.ones(3, 16, 16)
    compiled(x)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    found = {}
    for way, scope in WAYS.items():
        kept: Kept = []
        number = torch.full((1,), 3.0)
        before = made, ran
        with scope():
            compiled(x)
        stays = "compiled anew" if made > before[0] else "runs" if ran > before[1] else "runs eagerly"
        with scope(kept):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            number.sub_(1)
            thread = threading.Thread(target=torch.tanh, args=(number,))
            thread.start()
            thread.join()
            compiled(x)
        found[way] = {name: "yes" if sees(kept) else "no" for name, sees in SIGHTS.items()} | {"compiled code": stays}
    return found


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: what each way costs, then what it sees."""
    processes = [one for result in results for one in result["found"]]
    small, large = processes[0]["ns"], processes[0]["ratios"]
    heads = [f"{name}, ns more" for name in small] + [f"{name}, ratio" for name in large]
    lines = [f"| way | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for way in (AGAIN, *WAYS):
        cells = []
        for kind, form in (("ns", ".0f"), ("ratios", ".3f")):
            for name in processes[0][kind]:
                own = [one[kind][name][way] for one in processes]
                cells.append(f"{statistics.median(own):{form}} ({min(own):{form}} to {max(own):{form}})")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    plain = ", ".join(f"{name} {statistics.median(one['ns'][name]['none'] for one in processes):.0f} ns" for name in small)
    load = max(result["load"] for result in results)
    busy = f" The machine was busy with other work (load up to {load:.1f})." * (load > BUSY)
    where = f"{contest.described(results)}; one thread, {len(processes)} processes"
    lines += ["", f"{where}. In brackets: the range over processes. A call without: {plain}.{busy}", ""]
    seen = results[-1]["sees"]
    heads = [*seen[CALLBACK]]
    lines += [f"| sees | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    return [*lines, *(f"| {way} | {' | '.join(seen[way][head] for head in heads)} |" for way in WAYS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the result is kept")
    parser.add_argument("--docs", type=Path, nargs="+", metavar="FILE", help="write the table into the documentation")
    parser.add_argument("--work", choices=["measured", "sights"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(globals()[given.work]()))
    elif given.docs:
        contest.into_docs("ways-to-collect", table(contest.read(given.docs)))
    else:

        def of_process(work: str) -> Any:
            done = subprocess.run([sys.executable, __file__, "--work", work], stdout=subprocess.PIPE, text=True, check=True)
            return json.loads(done.stdout.splitlines()[-1])

        result: dict[str, Any] = {"machine": contest.machine(), "load": 0.0, "sees": of_process("sights"), "found": []}
        for _ in range(given.processes):
            result["found"].append(of_process("measured"))
            result["load"] = max(result["load"], os.getloadavg()[0])
            contest.keep(given.out, result)
        print("\n".join(table([result])))


if __name__ == "__main__":
    main()
