"""Ranks that would choose by other measurements find out."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ranks import torchrun
from torch.distributed import HashStore

import msctx
from msctx.context import agreement
from msctx.native import core, tuning, tuning_file
from msctx.native.environment_key import stamp
from msctx.native.tuning_file import Entry

PROBLEM = "1x5x11x13 * 3x5x3x3, float32, channels_first"


def write(path: Path, ran: str, when: str = "2026-01-02T03:04Z") -> Path:
    entry = Entry("fprop", PROBLEM, 1, "strict, fp32-grade", ran, "strict", {"torch": 2.0, ran: 1.0}, when)
    path.write_text(tuning_file.text_of({stamp(core.load()): {entry.key: entry}}))
    return path


def rows(path: Path, store: Any, *, has_group: bool = False) -> dict[str, tuple[Any, str]]:
    plan = msctx.explain(conv_fprop_algo="performance", tuning_file=str(path))
    return agreement._tuning(plan, store, "of", has_group=has_group)


def test_what_ranks_compare(tmp_path: Path) -> None:
    store, file = HashStore(), write(tmp_path / "one.json", "direct")
    row = rows(file, store)["tuning file on cpu"]
    assert row[1].startswith(f"{file} on ")
    assert row == rows(write(file, "direct", "2026-02-02T03:04Z"), store)["tuning file on cpu"], "measured at another time"
    assert row[0] != rows(write(file, "gemm"), store)["tuning file on cpu"][0]
    file.write_text("no JSON")
    assert "not used: " in rows(file, store)["tuning file on cpu"][0]


def test_what_ranks_measure_meanwhile_is_not_compared(tmp_path: Path) -> None:
    """One that comes late finds what the others have measured in the file that they have in common."""
    store = HashStore()
    first = rows(tmp_path / "empty.json", store)
    assert first == rows(write(tmp_path / "empty.json", "direct", tuning.moment()), store)
    assert first != rows(write(tmp_path / "empty.json", "direct"), store)


def test_ranks_of_a_group_choose_by_one_file(tmp_path: Path) -> None:
    assert [*rows(tmp_path / "one.json", HashStore(), has_group=True)] == ["tuning on cpu"]


def test_who_does_not_measure_has_no_row(tmp_path: Path) -> None:
    plan = msctx.explain(conv_fprop_algo="direct", tuning_file=str(tmp_path / "one.json"))
    assert not agreement._tuning(plan, HashStore(), "of", has_group=False)


PROGRAM = """
import os
rank = os.environ["RANK"]
os.chdir(rank)
if {has_group} and rank == "1":
    os.environ["MSCTX_ISA"] = "generic"
import torch.distributed as dist
if {has_group}:
    dist.init_process_group("gloo")
import msctx
try:
    with msctx.context(conv_fprop_algo="performance", tuning_file="tuning.json", strict={strict}):
        print(f"rank {{rank}} is on\\n", end="", flush=True)
except msctx.StrictError as error:
    print(f"rank {{rank}} is refused\\n{{error}}\\n", end="", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize(("has_group", "strict"), [(False, False), (False, True), (True, False)])
def test_real_ranks(tmp_path: Path, has_group: bool, strict: bool) -> None:
    """Their files have the same name; in a process group only what measurements depend on counts."""
    for rank, ran in enumerate(("direct", "gemm")):
        (tmp_path / str(rank)).mkdir()
        write(tmp_path / str(rank) / "tuning.json", ran)
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM.format(has_group=has_group, strict=strict)))
    command = torchrun(2, tmp_path / "train.py")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=os.environ)
    assert (done.stdout.count("is on"), done.stdout.count("is refused")) == ((1, 1) if strict else (2, 0)), done.stderr
    told = done.stdout if strict else done.stderr
    assert told.count("ranks differ in what they compute:") == 1
    assert ("tuning file on cpu: rank" in told) != has_group
    assert ("tuning on cpu: rank" in told) == has_group
    if not has_group:
        assert f"1/tuning.json on {os.uname().nodename}" in told
        assert "native.convolution.cpu" not in told, "which names the same file"
