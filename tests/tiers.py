"""Three tiers of tests: which test belongs to which, what a tier may start, and which nightly files a change runs.

A test of many cases is in the everyday tier with three of them. tests/data/tiers.json names the files whose cases all are.

    python tests/tiers.py [BASE]     the nightly files of what has changed since BASE, or else since the commit before this
"""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = json.loads((ROOT / "tests/data/tiers.json").read_text())
NIGHTLY: dict[str, list[str]] = TABLE["nightly"]
"""Pattern of paths → the files whose large tests are nightly ones, and which a change of such a path runs."""
FILES = {name for names in NIGHTLY.values() for name in names}
COMPILERS = re.compile(r"(.*/)?([\w-]*(g\+\+|gcc|clang)(-\d+)?|c\+\+|cc|ninja|nvcc)$")
SPENT: Counter[str] = Counter()
BEGAN = pytest.StashKey[float]()


def tier(markers: str) -> str:
    """What ``-m`` selects; nothing else has a budget."""
    return {"not full": "test", "full and not nightly": "test-all", "nightly": "test-nightly"}.get(markers, "")


def of_changes(paths: Iterable[str]) -> list[str]:
    """The nightly files of these paths."""
    found = {name for path in paths for pattern, names in NIGHTLY.items() if fnmatch(path, pattern) for name in names}
    return sorted(found | (FILES & {*paths}))


def changed(base: str = "HEAD^") -> list[str]:
    """Paths that differ from *base*; of a merge, HEAD^ is what it was merged into. None if history does not have it."""
    command = ["git", "diff", "--name-only", base, "--"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()


# --- hooks of pytest --------------------------------------------------------------------------------------------------


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        SPENT["compilations" if COMPILERS.match(str(arguments[0])) else "processes"] += 1
    elif event in ("os.fork", "os.forkpty", "os.system", "msctx.tests.forked"):
        SPENT["processes"] += 1


def pytest_configure(config: pytest.Config) -> None:
    if missing := [name for name in FILES if not (ROOT / name).exists()]:
        raise pytest.UsageError(f"tests/data/tiers.json names files that are not there: {', '.join(missing)}")
    sys.addaudithook(_watch)
    config.stash[BEGAN] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Large tests of nightly files are nightly ones; of many cases of one test three are everyday ones.

    Properties are in each tier: everyday with few examples, always the same; at night with ten times as many.
    """
    name = tier(config.option.markexpr)
    cases: dict[Any, list[pytest.Item]] = {}
    for item in items:
        path = item.path.relative_to(ROOT).as_posix()
        if "full" not in item.keywords:
            cases.setdefault((path, item.parent, getattr(item, "originalname", item.name)), []).append(item)
        elif path in FILES:
            item.add_marker("nightly")
    for (path, *_), found in cases.items():
        if path not in TABLE["every case"]:
            for item in {*found} - {found[0], found[len(found) // 2], found[-1]}:
                item.add_marker("full")
    properties = {item.obj: None for item in items if hypothesis.is_hypothesis_test(getattr(item, "obj", None))}
    for function in properties:
        found = function._hypothesis_internal_use_settings
        few = hypothesis.settings(found, max_examples=max(10, found.max_examples // 10), derandomize=True, database=None)
        many = {"test-all": found, "test-nightly": hypothesis.settings(found, max_examples=10 * found.max_examples)}
        function._hypothesis_internal_use_settings = many.get(name, few)
    if mark := {"test-all": "full", "test-nightly": "nightly"}.get(name):
        for item in items:
            if getattr(item, "obj", None) in properties:
                item.add_marker(mark)


def pytest_sessionfinish(session: Any) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["spent"] = dict(SPENT)
    elif _exceeded(session.config) and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_testnodedown(node: Any) -> None:
    SPENT.update(getattr(node, "workeroutput", {}).get("spent", {}))


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """What a tier has spent is always told; a loaded machine is no failure."""
    seconds = time.monotonic() - config.stash[BEGAN]
    terminalreporter.write_line(f"{SPENT['processes']} processes, {SPENT['compilations']} compilations, {seconds:.0f} s")
    for text in _exceeded(config):
        terminalreporter.write_line(f"FAILED {text}", red=True)


def _exceeded(config: Any) -> list[str]:
    name = tier(config.option.markexpr)
    return [
        f"make {name} had {SPENT[what]} {what}; tests/data/tiers.json allows {most}. Start fewer, or decide there"
        for what, most in TABLE["budgets"].get(name, {}).items()
        if SPENT[what] > most
    ]


if __name__ == "__main__":
    print(*of_changes(changed(*sys.argv[1:2])))
