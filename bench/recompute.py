"""What memory_optimize_level=O1 saves and costs: the memory that a training step takes, and its time, with and without caps.

Counted is what a step takes at once, gradients included, as a cap counts it (the pool's own count). All take turns in one process;
a time is the fastest step of a turn over that of O0 in the same round; a figure is the median over rounds (--processes).

    python bench/recompute.py --out bench/results/NAME.json
    python bench/recompute.py --docs bench/results/NAME.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import contest
import figures
from memory import TRAINED, named

SHARES = (0.75, 0.5)
"""Caps, as parts of the way from what O1 takes without a cap to what O0 takes."""
STEPS = 2
AGAIN = "A/A: O0 again"


def measure(subject: str, given: argparse.Namespace) -> dict[str, Any]:
    import torch

    import msctx

    torch.manual_seed(0)
    torch.set_num_threads(given.threads[0])
    model, step = TRAINED[subject]()

    def turn(options: dict[str, Any]) -> dict[str, float]:
        """Milliseconds, the most bytes at once, and the share of blocks that were recomputed."""
        times = []
        model.zero_grad()  # gradients of the turn before are counted by nobody
        with msctx.context(**options) as ctx:
            begin = msctx.memory_stats()["current_bytes"]
            ctx.watch(model)
            for _ in range(6):  # O1 measures, and settles
                step()
            msctx.reset_peak_memory_stats()
            for _ in range(STEPS):
                start = time.perf_counter()
                step()
                times.append((time.perf_counter() - start) * 1e3)
            found = msctx.memory_stats()
            blocks = [row["recomputed"] for row in found["recomputed"]]
        again = sum(blocks) / len(blocks) if options["memory_optimize_level"] == "O1" else 0.0
        return {"ms": min(times), "bytes": found["peak_bytes"] - begin, "recomputed": again}

    step()  # makes the optimizer's state, which no cap counts
    all_kept, all_recomputed = ({"memory_optimize_level": level} for level in ("O0", "O1"))
    least, most = turn(all_recomputed)["bytes"], turn(all_kept)["bytes"]
    caps = [int((least + share * (most - least)) / 0.95) for share in SHARES]
    choices = {"O0": all_kept, AGAIN: all_kept}
    choices |= {f"O1 under {cap / 2**20:.0f} MB": {"memory_optimize_level": "O1", "max_device_memory": cap} for cap in caps}
    choices["O1"] = all_recomputed
    rounds = [{name: turn(options) for name, options in choices.items()} for _ in range(given.processes)]
    rows = []
    for name in choices:
        median = {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]}
        each = [one[name]["ms"] / one["O0"]["ms"] for one in rounds]
        rows.append({"choice": name, **median, "slower": statistics.median(each), "each": each})
    return {"subject": subject, "rows": rows}


def collect(given: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"machine": contest.machine(), "processes": given.processes, "subjects": []}
    for subject in named(TRAINED, given):
        result["subjects"].append(measure(subject, given))
        contest.keep(given.out, result)
    return result


def table(results: list[dict[str, Any]]) -> list[str]:
    """Markdown: a line for each choice."""
    lines = ["| training step | | recomputed | memory of a step | time |", "|---|---|---|---|---|"]
    for subject in (subject for result in results for subject in result["subjects"]):
        kept = subject["rows"][0]["bytes"]
        for row in subject["rows"]:
            share = f"{row['bytes'] / 2**20:.0f} MB, {row['bytes'] / kept:.2f}"
            name = subject["subject"].partition(",")[0] if row is subject["rows"][0] else ""
            controls = next((one["each"] for one in subject["rows"] if one["choice"] == AGAIN), ())
            slower = row["slower"]
            time = figures.of_processes(slower, row.get("each"), controls) if row is not subject["rows"][0] else f"{slower:.2f}"
            lines.append(f"| {name} | {row['choice']} | {row['recomputed']:.0%} | {share} | {time} |")
    rounds = min(result["processes"] for result in results)
    kept = all("each" in row for result in results for subject in result["subjects"] for row in subject["rows"])
    told = figures.legend(kept, rounds).replace("processes", "rounds")
    told += " A/A was not measured." * (not kept)
    return [*lines, "", f"{contest.described(results)}; {rounds} or more rounds in one process. {told}"]


def main() -> None:
    contest.do(contest.arguments(__doc__, TRAINED, [1]).parse_args(), "recompute-speed", lambda _: None, collect, table)


if __name__ == "__main__":
    main()
