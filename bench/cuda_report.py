"""Convolutions of msctx on an NVIDIA GPU, in one go: measures, prints tables and may keep all as JSON.

Each part runs in a process of its own, a case at a time. One that crashes, hangs or leaves the GPU's context unusable loses the case
that it was at; the part goes on behind it in another process.

    python bench/cuda_report.py --out RAW.json
    python bench/cuda_report.py --summary RAW.json > bench/results/NAME-cuda.json
    python bench/cuda_report.py --device cpu --seconds 120    # tries the script itself, on problems too small to say anything
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone
from typing import Any

import contest
import cuda_figures
import figures
import summary
import torch
from contest import commit
from cuda_figures import AGAIN, BENCHMARK, TORCH, Case, Say
from torch import nn

import msctx
from msctx.native import tuning_file

Rows = list[dict[str, Any]]
PARTS = {"environment": 0.06, "figures": 0.88, "overhead": 0.06}
"""In this order; the number is the share of the time."""
GRACE = 15.0
"""Seconds after its time in which a part may still end the case it is at; then it is killed."""
CALLS = 500
"""Of the smallest convolution in one go: fewer launches than a GPU takes before it makes the host wait."""


def cases_of(part: str, device: torch.device) -> list[Case]:
    return {
        "environment": lambda: [("environment", lambda say: say(environment(device)))],
        "figures": lambda: cuda_figures.figures(device),
        "overhead": lambda: [("the smallest conv2d", lambda say: overhead(say, device))],
    }[part]()


def environment(device: torch.device) -> dict[str, Any]:
    found = {
        "GPU": "none, this is a trial",
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found |= {"GPU": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "driver": tuning_file.driver_version()}
        found |= {"multiprocessors": gpu.multi_processor_count, "GiB": round(gpu.total_memory / 2**30, 1)}
    return found


def overhead(say: Say, device: torch.device) -> None:
    """The host's time for a call, alone and waiting for the device each time. The order matters: what is loaded stays."""
    torch.set_num_threads(1)
    x, w = torch.randn(1, 4, 8, 8, device=device), torch.randn(4, 4, 3, 3, device=device)
    x_grad, w_grad, g = x.clone().requires_grad_(), w.clone().requires_grad_(), torch.randn(1, 4, 6, 6, device=device)

    def forward() -> None:
        with torch.no_grad():
            nn.functional.conv2d(x, w)

    def both() -> None:
        torch.autograd.grad(nn.functional.conv2d(x_grad, w_grad), (x_grad, w_grad), g)

    def microseconds(call: Callable[[], None], waits: bool) -> float:
        times = []
        for _ in range(7):
            cuda_figures.settle(device)
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
                if waits:
                    cuda_figures.settle(device)
            times.append((time.perf_counter() - start) / CALLS * 1e6)
        return statistics.median(times)

    by_name = {"conv_fprop_algo": "implicit_gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1"}
    for how in ("without msctx", "loaded, outside a context", "implicit_gemm and algo_1 by name"):
        if how.startswith("loaded"):
            with msctx.context(**by_name, fallback="silent"):
                both()
        with msctx.context(**by_name, fallback="silent") if how.startswith("implicit") else nullcontext():
            for what, call in {"forward": forward, "forward and backward": both}.items():
                call()
                found = {"us": round(microseconds(call, False), 2), "us_waiting": round(microseconds(call, True), 2)}
                say({"what": what, "how": how, **found})


def work(given: argparse.Namespace) -> None:
    """Be the process of a part. An exception ends it: it may have left the GPU's context behind unusable."""
    until = time.monotonic() + given.seconds
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)  # whoever else prints must not do so between the lines
        for number, (name, run) in enumerate(cases_of(given.work, torch.device(given.device))[given.skip :]):
            if number and time.monotonic() > until:
                break
            lines.write(json.dumps({"begun": name}) + "\n")
            run(lambda row: lines.write(json.dumps({"row": row}) + "\n"))


def run_part(part: str, given: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Its rows, how many cases it began, and those at which a process of it ended too early."""
    found: dict[str, Any] = {"rows": [], "begun": 0, "failed": []}
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 1:
        words = ["--work", part, "--device", given.device, "--skip", found["begun"], "--seconds", left]
        before, case = found["begun"], "before the first case"
        with subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True) as child:
            late = threading.Timer(left + GRACE, child.kill)
            late.start()
            for line in child.stdout or ():
                message = json.loads(line)
                case, found["begun"] = message.get("begun", case), found["begun"] + ("begun" in message)
                found["rows"] += [message["row"]] if "row" in message else []
            late.cancel()
        if child.returncode == 0:
            break
        found["failed"].append(f"{case}: its process ended with exit code {child.returncode}")
        if found["begun"] == before:
            break
    return found


def report(given: argparse.Namespace) -> dict[str, Any]:
    """Run all parts, and show each result as soon as it exists."""
    whole: dict[str, Any] = {"device": given.device, "parts": {}}
    for part, share in PARTS.items():
        found = run_part(part, given, given.seconds * share)
        whole["parts"][part] = found
        contest.keep(given.out, whole)
        rows = [f"{len(found['rows'])} problems"] if part == "figures" else map(json.dumps, found["rows"])
        print(f"--- {part}", *rows, *found["failed"], sep="\n", flush=True)
    print(*for_docs(reduced([whole]))["cuda-figures"], sep="\n")
    return whole


def by_name(row: dict[str, Any]) -> dict[str, Any]:
    return {figure["name"]: figure for figure in row["figures"]}


NAMES = (AGAIN, BENCHMARK, "performance")
NOTABLE = 1.05
"""From this ratio on a choice of ``performance`` has a row in the documentation."""


def reduced(results: summary.Results) -> summary.Summary:
    """How torch's time compares with that of each, by arithmetic and direction; the choices of performance, and the host's time for
    the smallest convolution."""
    (result,) = results
    parts, found, chosen = result["parts"], [], []
    rows: Rows = parts["figures"]["rows"]
    for arithmetic, direction in dict.fromkeys((row["arithmetic"], row["direction"]) for row in rows):
        mine = [by_name(row) for row in rows if (row["arithmetic"], row["direction"]) == (arithmetic, direction)]
        ratios = {name: [of[name]["ratio"] for of in mine if of[name]["rounds"] > 1] for name in NAMES}
        each = {name: figures.of(some, figures.geomean(some)) for name, some in ratios.items() if some}
        found.append({"what": f"{direction}, {arithmetic}", "problems": len(mine), **each})
    for row in rows:
        of, best = by_name(row), by_name(row)["performance"]
        if (best["ratio"] or 0) >= NOTABLE and best["ran"] != "torch":
            about = {"ran": best["ran"], "torch_ms": of[TORCH]["ms"], **{name: of[name]["ratio"] for name in NAMES[1:]}}
            chosen.append({"what": row["what"], **about, "error": best["error"], "torch_error": of[TORCH]["error"]})
    (machine,) = parts["environment"]["rows"]
    return {"machine": machine, "rows": found, "chosen": chosen, "overhead": parts["overhead"]["rows"]}


def for_docs(of: summary.Summary) -> summary.Tables:
    head = ["torch's time over that of", *NAMES]
    lines = [
        [f"{row['what']}, {row['problems']} problems", *(figures.span(row[name]) if name in row else "" for name in NAMES)]
        for row in of["rows"]
    ]
    chosen = [
        [
            f"`{row['ran']}` for {row['what']}",
            *(f"{row[name]:.2f}" for name in ("torch_ms", BENCHMARK, "performance")),
            f"{row['error']:.0e}, {row['torch_error']:.0e}",
        ]
        for row in of["chosen"]
    ]
    chose = ("`performance` chose", "torch, ms", "with benchmark", "`performance`", "error, torch's")
    m = of["machine"]
    where = f"{m['GPU']}, torch {m['torch']}, cuDNN {m['cuDNN']}, {m['date'][:10]}"
    calls = "; ".join(f"{row['what']}, {row['how']}: {row['us']:.0f} µs" for row in of["overhead"])
    last = f"{where}; batches of 16 to 64. Geometric mean (smallest to largest). The smallest convolution, a call: {calls}."
    return {"cuda-figures": [*summary.markdown(head, lines), "", *summary.table(chose, chosen, last)]}


def main() -> int:
    parser = contest.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=440, help="for everything together")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script itself")
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given)
        return 0
    if summary.of_files(given, reduced, for_docs):
        return 0
    if given.device == "cuda" and not torch.cuda.is_available():
        print("cuda_report.py: torch finds no NVIDIA GPU here; --device cpu tries the script itself", file=sys.stderr)
        return 2
    return 1 if any(found["failed"] for found in report(given)["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
