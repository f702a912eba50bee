"""The parts of the report on a GPU, each a list of cases; and of them all that is not a figure of one convolution."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import cuda_figures
import models
import pytest
import torch
from contest import ROOT, commit
from cuda_figures import Case, Say
from networks import Bottleneck
from torch import nn

import msctx
from msctx.compare import result
from msctx.native import build, environment_key
from msctx.native.cuda import driver
from msctx.native.cuda import plans as cuda_build

CALLS = 500
"""Of the smallest convolution in one go: fewer launches than a GPU takes before it makes the host wait."""
STEPS = 3.0
"""Seconds for the rounds of training steps."""
TOGETHER = ("tests/cudnn", "tests/native/cuda")
"""Tests that do not mind others on the same GPU; the rest look at its memory."""


def of(part: str, device: str) -> list[Case]:
    makers: dict[str, Callable[[torch.device], list[Case]]] = {
        "environment": lambda device: [("environment", lambda say: say(environment(device)))],
        "build": building,
        "checks": lambda device: [
            ("tests of cuDNN and of our kernels", lambda say: check(say, TOGETHER, max(1, min(4, (os.cpu_count() or 1) // 2))))
        ],
        "figures": cuda_figures.figures,
        "overhead": lambda device: [("the smallest conv2d", lambda say: overhead(say, device))],
        "costs": costs,
        "more checks": lambda device: [("the other tests for a GPU", lambda say: check(say, others(), 1))],
    }
    return makers[part](torch.device(device))


def environment(device: torch.device) -> dict[str, Any]:
    found = {
        "GPU": "none, this is a trial",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
        "msctx": msctx.__version__,
        "commit": commit(),
        "cores": os.cpu_count(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found |= {"GPU": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "driver": environment_key.driver()}
        found |= {"multiprocessors": gpu.multi_processor_count, "GiB": round(gpu.total_memory / 2**30, 1)}
    return found


# --- builds and tests -----------------------------------------------------------------------------------------------------


def building(device: torch.device) -> list[Case]:
    def native(say: Say) -> None:
        began, known = time.perf_counter(), build.found()
        made = build.build()
        about = {"seconds": round(time.perf_counter() - began, 1), "cached": known is not None}
        say({"what": "native core", **about, "compiler": made.origin})

    def kernels(say: Say) -> None:
        began = time.perf_counter()
        arch = driver.arch_of(*torch.cuda.get_device_capability(device)) if device.type == "cuda" else "sm_90a"
        reports = cuda_build.build([arch])
        say(
            {
                "what": f"CUDA kernels, {arch}",
                "seconds": round(time.perf_counter() - began, 1),
                "cached": all(report.cached for report in reports),
                "compiler": reports[0].compiler,
                "modules": len(reports),
                "failed": {str(report.module): report.error for report in reports if report.error},
            }
        )

    return [("native core", native), ("CUDA kernels", kernels)]


def others() -> tuple[str, ...]:
    """The files with tests for a GPU that are in none of the folders."""
    files = (path for path in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.cuda" in path.read_text(encoding="utf-8"))
    names = (path.relative_to(ROOT).as_posix() for path in files)
    return tuple(name for name in names if not name.startswith(TOGETHER))


class Recorder:
    """A plugin of pytest: tells of each test as it ends, so that a run that is killed has told of those before."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            why = "" if report.outcome == "passed" else why_of(report)
            self.say({"test": report.nodeid, "outcome": report.outcome, "why": why, "seconds": round(report.duration, 2)})


def why_of(report: pytest.TestReport) -> str:
    """The first line of why a test failed or was skipped."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    return text.strip().partition("\n")[0]


def check(say: Say, files: tuple[str, ...], processes: int) -> None:
    """Run the tests that need a GPU; those of a device that is not here are skipped, and say so."""
    words = ["-m", "cuda", "-q", "-p", "no:cacheprovider", "-n", str(processes), *files]
    if (code := pytest.main(words, plugins=[Recorder(say)])) > pytest.ExitCode.TESTS_FAILED:
        raise RuntimeError(f"pytest ended with {pytest.ExitCode(code)!r}")


# --- what it costs --------------------------------------------------------------------------------------------------------


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


def costs(device: torch.device) -> list[Case]:
    return [
        ("a training step with deterministic=ON", lambda say: say(determinism(device))),
        ("memory under conv_workspace_limit", lambda say: memory(say, device)),
    ]


def determinism(device: torch.device) -> dict[str, Any]:
    """The time of a training step with deterministic="ON" over that without."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once in a process: both sides have it
    batch, size, width = (64, 128, 64) if device.type == "cuda" else (2, 32, 8)
    torch.manual_seed(0)
    body = (nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), Bottleneck(width, width, 1), Bottleneck(4 * width, 2 * width, 2))
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)).to(device)
    step, images = models.step_of(model, True), torch.randn(batch, 3, size, size, device=device)
    on = msctx.context(deterministic="ON")
    scopes = {"off": nullcontext, "ON": lambda: on, "off again": nullcontext}
    for scope in scopes.values():
        with scope():
            step(images)
    entrants = [result.Entrant(name, scope, lambda: step(images)) for name, scope in scopes.items()]
    found = {name: asdict(ratio) for name, ratio in result.interleaved(entrants, STEPS, device).items()}
    return {"what": "training step", "cost": 1 / found["ON"]["ratio"], "of": found}


def memory(say: Say, device: torch.device) -> None:
    """What one convolution takes beside its tensors, with no limit of its workspace and with none allowed."""
    if device.type == "cuda":
        problem = cuda_figures.MeasuredProblem(
            cuda_figures.WINDOW_3[0], 64, "fprop", cuda_figures.STRICT, cuda_figures.FIRST, device
        )
    else:
        layer, batch = cuda_figures.TRIED[0]
        problem = cuda_figures.MeasuredProblem(layer, batch, "fprop", cuda_figures.STRICT, cuda_figures.FIRST, device)
    given = problem.inputs(0)
    for limit in (None, 0):
        options = {} if limit is None else {"conv_workspace_limit": limit}
        with msctx.context(conv_fprop_algo="winograd_nonfused", fallback="silent", **options) as ctx:
            problem.run(*given)
            peak = None
            if device.type == "cuda":
                cuda_figures.settle(device)
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                result = problem.run(*given)
                peak = torch.cuda.max_memory_allocated(device) - before - result.nbytes
        (row,) = ctx.choices()
        about = {"ran": row.ran, "workspace": row.workspace, "peak": peak, "why": next(iter(row.reasons), "")}
        say({"what": "memory", "limit": limit, **about})
