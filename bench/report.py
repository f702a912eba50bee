"""Runs the benchmarks and writes their figures into the documentation, between the markers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import contest

ROOT = Path(__file__).parents[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", str(ROOT / "bench"), f"--benchmark-json={path}"]
        subprocess.run(command, check=True, cwd=ROOT)
        found = json.loads(path.read_text())
    rows = {bench["name"]: bench for bench in found["benchmarks"]}

    def micro(name: str) -> str:
        stats = rows[name]["stats"]
        return f"{stats['median'] * 1e6:.1f} µs (quartiles {stats['q1'] * 1e6:.1f} to {stats['q3'] * 1e6:.1f})"

    imports = rows["test_import"]["extra_info"]
    seed = rows["test_the_same_with_a_seed"]["extra_info"]["torch_manual_seed_us"]
    native = rows["test_a_convolution_outside_every_context"]["extra_info"]
    mm = rows["test_the_smallest_product"]["extra_info"]["us"]
    lines = [
        "| what | median |",
        "|---|---|",
        f"| enter and leave a context with 10 options | {micro('test_enter_and_leave_with_ten_options')} |",
        f"| the same and a seed (`torch.manual_seed` alone: {seed:.0f} µs) | {micro('test_the_same_with_a_seed')} |",
        f"| enter and leave a context with nothing set | {micro('test_enter_and_leave_with_nothing_set')} |",
        f'| call a function decorated with `deterministic="ON"` | {micro("test_call_of_a_decorated_function")} |',
        f"| read and check a YAML file of 30 options | {micro('test_validate_a_file_of_thirty_options')} |",
        f"| `import msctx` after `import torch` ({imports['torch_ms']:.0f} ms) | {imports['msctx_after_torch_ms']:.0f} ms |",
        f"| the smallest `conv2d` outside every context: without the native core, with it loaded | {native['plain_us']:.1f} µs, "
        f"{native['loaded_us']:.1f} µs |",
        f"| the same by `implicit_gemm` | {micro('test_the_smallest_convolution_under_a_policy[implicit_gemm]')} |",
        f"| the smallest `mm` in bfloat16: outside, under `torch.autocast`, under `allow_mix_precision_bf16` | "
        f"{mm['bf16 outside']:.1f} µs, {mm['autocast, no cast']:.1f} µs, {mm['policy, no cast']:.1f} µs |",
        f"| the same of float32, cast twice: `torch.autocast`, the mode | {mm['autocast, two casts']:.1f} µs, "
        f"{mm['policy, two casts']:.1f} µs |",
        f"| the same in float32: before and after a mode was first used, under `force_fp32` | {mm['before any policy']:.1f} µs, "
        f"{mm['outside']:.1f} µs, {mm['policy that leaves it']:.1f} µs |",
        "",
        f"Measured on {found['machine_info']['cpu'].get('brand_raw', 'an unnamed CPU')}, "
        f"Python {found['machine_info']['python_version']}; one process, without A/A: orders of magnitude only.",
    ]
    contest.into_docs("bench", lines)


if __name__ == "__main__":
    main()
