"""The table and the instruction sets: what there is, which is best, what is refused."""

import json
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from cases import CASES, DEPTHWISE, case
from checks import takes

from kernels import DIRECTIONS, ROWS, Kernels
from msctx.native.build import TILES, VECTORS
from msctx.native.core import cpuinfo
from msctx.shipped import KERNEL_SOURCES

ABILITIES = KERNEL_SOURCES / "abilities.json"
BEST_FIRST = ("amx_fp16", "amx", "avx512", "avx2", "generic")


def test_the_table_is_that_of_the_source_on_every_isa(kernels: Kernels) -> None:
    """A matrix unit has its rows before those that all have."""
    here, plain = tuple(map(str, kernels.rows)), [str(row) for row in kernels.table("generic")]
    has_unit = any(isa.startswith("amx") for isa in (*kernels.isas, *kernels.emulated))
    assert here == tuple(row for row in ROWS if row in here)
    assert all("tiles" in row for row in set(ROWS) - set(here)), "they are of a matrix unit"
    assert (here == ROWS) == has_unit
    assert len(set(ROWS)) == len(ROWS) >= 23
    for isa in (*kernels.isas, *kernels.emulated):
        table = [str(row) for row in kernels.table(isa)]
        assert table[-len(plain) :] == plain
        assert (len(table) > len(plain)) == isa.startswith("amx"), isa


def test_only_sums_by_atomic_additions_have_no_order(kernels: Kernels) -> None:
    assert {row.algorithm for row in kernels.rows if not row.fixed_order} == {"algo_0", "algo_3"}
    assert all(row.fixed_order or not row.same_on_every_isa for row in kernels.rows)
    differ = {row.algorithm for row in kernels.rows if not row.same_on_every_isa and not row.algorithm.startswith("tiles")}
    assert differ == {"algo_0", "algo_3"}
    exact = {row.math for row in kernels.rows if row.algorithm != "reference" and not row.algorithm.startswith("tiles")}
    assert exact == {"strict"}
    assert {row.math for row in kernels.rows if row.algorithm.startswith("tiles")} <= {"fp32-grade", "tf32"}
    assert kernels.row(0, "reference").math == "float64"


def test_the_plan_knows_what_the_rows_can(kernels: Kernels) -> None:
    """``UPDATE_GOLDEN=1`` writes the file anew, where a matrix unit is there or emulated."""
    if not any(isa.startswith("amx") for isa in (*kernels.isas, *kernels.emulated)):
        pytest.skip("the rows of a matrix unit are not here")
    able = {
        "add in no fixed order": lambda row: not row.fixed_order,
        "emulate float32": lambda row: row.math in ("fp32-grade", "tf32"),
        "keep a form of the weights": lambda row: row.keeps_weights and DIRECTIONS[row.direction] != "wgrad",
        "round to TF32": lambda row: row.math == "tf32",
        "take a workspace": lambda row: any(takes(row, c) and kernels.workspace(row, c) for c in (*CASES, *DEPTHWISE)),
    }
    rows = {str(row): row for isa in (*kernels.isas, *kernels.emulated) for row in kernels.table(isa)}.values()
    abilities = {}
    for ability, has_it in able.items():
        found = [(f"{DIRECTIONS[row.direction]} {row.name}", "tiles" in row.algorithm) for row in rows if has_it(row)]
        everywhere = {name for name, on_tiles in found if not on_tiles}
        abilities[ability] = {
            "everywhere": sorted(everywhere),
            "with AMX": sorted({name for name, _ in found} - everywhere),
        }
    if os.environ.get("UPDATE_GOLDEN"):
        ABILITIES.write_text(json.dumps(abilities, indent=2) + "\n", "utf-8")
    assert json.loads(ABILITIES.read_text("utf-8")) == abilities


def test_the_best_isa_that_linux_sees_is_used_until_another_is_chosen(kernels: Kernels) -> None:
    best = kernels.isas[0]
    assert kernels.isas == [isa for isa in BEST_FIRST if isa in kernels.isas]
    assert (kernels.isa_in_use, kernels.isas[-1]) == (best, "generic")
    assert set(kernels.isas) <= {*VECTORS, *TILES} <= set(BEST_FIRST)
    if flags := {*cpuinfo().get("flags", "").split()}:
        wide = {"avx2", "fma", *(f"avx512{part}" for part in ("f", "bw", "dq", "vl", "cd"))}
        assert ("avx2" in kernels.isas) == ({"avx2", "fma"} <= flags and "avx2" in VECTORS)
        assert ("avx512" in kernels.isas) == (wide <= flags and "avx512" in VECTORS)
    try:
        for isa in kernels.isas:
            assert kernels.use_isa(isa)
            for unknown in ("", "sse9", "AVX2", isa + " ", isa[:-1]):
                assert not kernels.use_isa(unknown), unknown
                assert kernels.isa_in_use == isa
    finally:
        assert kernels.use_isa(best)


def test_all_reasons_are_reported(kernels: Kernels) -> None:
    """Not the first alone: whoever reads them wants to mend all at once."""
    bad = case(1, 4, 4, (9, 9), 2, 2, 1, 3, dtype="float64")
    for row in kernels.rows:
        found = [len(kernels.reasons(row, c)) for c in (bad, replace(bad, dtype="float32"), CASES[0])]
        counts = {"gemm": [0, 0, 0], "reference": [0, 0, 0], "depthwise": [2, 1, 1], "product": [1, 1, 1], "windows": [2, 1, 1]}
        assert found == counts.get(row.algorithm, [4, 3, 0] if "winograd" in row.algorithm else [1, 0, 0]), row


def test_windows_that_are_large_or_reach_far_have_another_row(kernels: Kernels) -> None:
    near, few_rows = case(1, 130, 17, 40, 3, padding=1), case(1, 256, 16, 33, 3, 1, 6, 6)
    far = few_rows, case(1, 130, 17, 40, 9, padding=4), case(1, 64, 16, 64, 3, 1, 32, 32)
    rows = {row.algorithm: row for row in kernels.rows if row.name == "implicit_gemm"}
    assert not kernels.reasons(rows["windows"], near)
    for each in far:
        assert kernels.reasons(rows["windows"], each) == ["its windows reach too far, or have too many elements"]
        assert not kernels.reasons(rows["implicit_gemm"], each)


def test_indices_of_32_bits(kernels: Kernels) -> None:
    """An image whose planes have more elements is refused by what keeps indices, without its being touched."""
    fits, large = (case(1, 1, 1, (2**15, side), 3, padding=1) for side in (2**16 - 1, 2**16))
    for row in kernels.rows:
        has_indices = row.algorithm in ("implicit_precomp_gemm", "algo_3") or row.algorithm.startswith(
            ("tiles_gemm", "tiles_wgrad", "tiles_int", "tiles_bf")
        )
        assert bool(kernels.reasons(row, large)) == (has_indices or not takes(row, large)), row
        assert bool(kernels.reasons(row, fits)) == (not takes(row, fits)), row


def test_workspace(kernels: Kernels) -> None:
    """Known before anything runs; it may grow with the threads, and rows that say they need none need none."""
    needs_none = {"implicit_gemm", "windows", "direct", "algo_0", "reference"}
    for row in kernels.rows:
        for each in CASES:
            if kernels.reasons(row, each):
                continue
            bytes_ = [kernels.workspace(row, each, threads) for threads in (1, 2, 7)]
            assert all(a <= b for a, b in pairwise(bytes_)), (row, each)
            assert bytes_[0] >= 0
            assert row.algorithm not in needs_none or bytes_[-1] == 0
    table = kernels.workspace(kernels.row(0, "implicit_precomp_gemm"), CASES[0])
    assert table == 9 * 14 * 14 * 4 + (-9 * 14 * 14 * 4) % 64
