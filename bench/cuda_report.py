"""All that can be told of msctx on an NVIDIA GPU, in one go: builds, checks, measures, prints the tables and keeps them as JSON.

Each part runs in a process of its own, a case at a time. One that crashes, hangs or leaves the GPU's context unusable loses the case
that it was at; the part goes on behind it in another process, and the other parts never notice.

    python bench/cuda_report.py --json cuda.json
    python bench/cuda_report.py --device cpu --seconds 120    # tries the script itself, on problems too small to say anything
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import contest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PARTS = {
    "environment": 0.06,
    "build": 0.24,
    "checks": 0.15,
    "figures": 0.44,
    "overhead": 0.04,
    "costs": 0.04,
    "more checks": 0.03,
}
"""In this order; the number is the share of the time. What a part does not need is there for the next."""
NEEDED = ("build", "checks")
"""Without these, figures say little: a report that has none of them has not succeeded."""
LEAST = 1.0
"""With fewer seconds left a part is not begun."""
GRACE = 15.0
"""Seconds after its time in which a part may still end the case it is at; then it is killed."""
Say = Callable[[dict[str, Any]], None]


def command(part: str, given: argparse.Namespace, skip: int, seconds: float) -> list[str]:
    """What does a part's cases behind the first *skip*; it prints a line of JSON for each case begun, and for each row found."""
    words = ["--work", part, "--device", given.device, "--skip", str(skip), "--seconds", f"{seconds:.1f}"]
    return [sys.executable, str(Path(__file__).resolve()), *words]


def work(part: str, device: str, skip: int, seconds: float) -> None:
    """Be such a process. An exception ends it: it may have left the GPU's context behind unusable."""
    until = time.monotonic() + seconds
    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)  # whoever else prints must not do so between the lines
        import cuda_cases

        def say(message: dict[str, Any]) -> None:
            lines.write(json.dumps(message) + "\n")

        cases = cuda_cases.of(part, device)
        say({"cases": len(cases)})
        for number, (name, run) in enumerate(cases[skip:]):
            if number and time.monotonic() > until:
                break
            say({"begun": name})
            run(lambda row: say({"row": row}))


def run_part(part: str, given: argparse.Namespace, seconds: float, done: Say) -> dict[str, Any]:
    """A part's result; *done* is told of it as far as it is, after each case."""
    found = nothing("no time was left")
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > LEAST:
        found["note"], before = "", found["begun"]
        code, case, said = one_process(part, given, left, found, lambda: done(found))
        if code == 0:
            break
        if time.monotonic() > until:
            found["note"] = f"killed at {case}: it was out of time" if case else "killed: it was out of time"
            break
        found["failed"].append({"case": case, "why": said[-1] if said else f"ended with exit code {code}", "log": said[-30:]})
        if found["begun"] == before:
            found["note"] = "it cannot begin"
            break
    return found


def one_process(
    part: str, given: argparse.Namespace, seconds: float, found: dict[str, Any], done: Callable[[], None]
) -> tuple[int, str, list[str]]:
    """Have a process do what is left of a part, into *found*: its exit code, the case it ended at, and what it said beside."""
    case = ""
    words = command(part, given, found["begun"], seconds)
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True) as child,
    ):
        late = threading.Timer(seconds + GRACE, kill, (child,))
        late.start()
        try:
            for line in child.stdout or ():
                message = json.loads(line)
                if "row" in message:
                    found["rows"].append(message["row"])
                elif "cases" in message:
                    found["cases"] = message["cases"]
                else:
                    case = message["begun"]
                    found["begun"] += 1
                    done()
            child.wait()
        finally:
            late.cancel()
            kill(child)
        log.seek(0)
        return child.returncode, case, [line for line in log.read().splitlines() if line.strip()]


def kill(child: subprocess.Popen[str]) -> None:
    """The process and all that it began, if they are still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def nothing(note: str) -> dict[str, Any]:
    """The result of a part that did not run."""
    return {"rows": [], "failed": [], "cases": 0, "begun": 0, "note": note, "seconds": 0.0}


def report(given: argparse.Namespace) -> dict[str, Any]:
    """Run the requested parts, and show each result as soon as it exists."""
    import cuda_tables

    requested = {part: share for part, share in PARTS.items() if not given.parts or part in given.parts}
    command = f"bench/cuda_report.py --seconds {given.seconds:g}" + (f" --parts {','.join(given.parts)}" if given.parts else "")
    result: dict[str, Any] = {"command": command, "device": given.device, "seconds": 0.0, "parts": {}}
    result["parts"] = {part: nothing("not requested") for part in PARTS}
    began, share = time.monotonic(), 0.0
    for part in requested:
        share += requested[part]
        started = time.monotonic()

        def done(found: dict[str, Any], part: str = part, started: float = started) -> None:
            now = time.monotonic()
            result["parts"][part] = found | {"seconds": round(now - started, 1)}
            result["seconds"] = round(now - began, 1)
            contest.keep(place(given, result), result)

        seconds = given.seconds * share / sum(requested.values()) - (started - began)
        done(run_part(part, given, seconds, done))
        cuda_tables.show(part, result["parts"][part])
    return result


def place(given: argparse.Namespace, result: dict[str, Any]) -> Path | None:
    """Where the result is kept: unless told, beside the others under the name of the GPU; what was tried on a CPU nowhere."""
    if given.json or given.device == "cpu":
        return given.json
    name = next((row["GPU"] for row in result["parts"]["environment"]["rows"]), "gpu")
    return RESULTS / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-cuda.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--json", type=lambda text: Path(text).resolve(), metavar="FILE", help="else bench/results/<GPU>-cuda.json"
    )
    parser.add_argument("--seconds", type=float, default=440, help="for everything together")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=[], metavar="NAME,NAME", help=", ".join(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the script itself")
    parser.add_argument("--summary", type=Path, nargs=1, metavar="RAW", help="print the summary of a result")
    parser.add_argument(
        "--docs", type=Path, nargs=1, metavar="FILE", help="write the tables of a summary into the documentation"
    )
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not given.seconds > 0:
        parser.error(f"--seconds {given.seconds:g}: allowed is more than 0")
    if given.work:
        work(given.work, given.device, given.skip, given.seconds)
        return 0
    if given.docs or given.summary:
        import cuda_tables
        import summary

        summary.do(given, print, vars, cuda_tables.reduced, cuda_tables.for_docs)
        return 0
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print("cuda_report.py: torch finds no NVIDIA GPU here; --device cpu tries the script itself", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
    try:
        result = report(given)
    except KeyboardInterrupt:
        print("interrupted; what was found until then is in the file of --json", file=sys.stderr)
        return 130
    if path := place(given, result):
        print(f"{result['seconds']:.0f} s; everything is in {path}")
    is_left_out = any(not result["parts"][part]["rows"] for part in NEEDED if not given.parts or part in given.parts)
    return 1 if is_left_out or any(found["failed"] for found in result["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
