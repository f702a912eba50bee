"""The value types: what each takes, the one form it takes it in, and what it says about everything else."""

from unittest import mock

import numpy as np
import pytest

from msctx.options.kinds import (
    BOOL,
    FLAG,
    ON_OFF,
    TEXT_FLAG,
    BadValue,
    ChoiceKind,
    IntKind,
    Kind,
    MemoryKind,
    ShareKind,
    TextKind,
    YamlWord,
)

GB = 2**30
SAVE_GRAPHS = ChoiceKind((0, 1, 2, 3), {False: 0, True: 2})
JIT = ChoiceKind(("auto", "true", "false"), {True: "true", False: "false"})
ALGORITHM = ChoiceKind(("normal", "implicit_precomp_gemm"), {"precomp_gemm": "implicit_precomp_gemm"})
LIST = TextKind(comma_list=True)
STEPS = TextKind(comma_list=True, separator="|")

# fmt: off
GOOD: list[tuple[Kind, list[tuple[object, object]]]] = [
    (BOOL, [(True, True), (False, False), (YamlWord("ON"), True), (YamlWord("off"), False), (YamlWord("Yes"), True),
        (YamlWord("no"), False)]),
    (ON_OFF, [("ON", "ON"), ("OFF", "OFF"), (True, "ON"), (False, "OFF"), (1, "ON"), (0, "OFF"), (YamlWord("on"), "ON"),
        (YamlWord("OFF"), "OFF")]),
    (FLAG, [(0, 0), (1, 1), (True, 1), ("OFF", 0), (YamlWord("on"), 1)]),
    (TEXT_FLAG, [("0", "0"), ("1", "1"), (1, "1"), (False, "0"), ("ON", "1")]),
    (IntKind(), [(-3, -3)]),
    (IntKind(0), [(0, 0)]),
    (IntKind(0, 7), [(7, 7)]),
    (ShareKind(), [(1e-5, 1e-5), (np.float32(0.5), 0.5)]),
    (SAVE_GRAPHS, [(3, 3), (1, 1), (0, 0), (True, 2), (False, 0), (YamlWord("on"), 2)]),
    (JIT, [("auto", "auto"), (True, "true"), (YamlWord("off"), "false")]),
    (ALGORITHM, [("precomp_gemm", "implicit_precomp_gemm"), ("implicit_precomp_gemm", "implicit_precomp_gemm")]),
    (TextKind(), [("net/fc", "net/fc"), (YamlWord("on"), "on")]),
    (TextKind(empty=True), [("", "")]),
    (LIST, [("a,b", "a,b"), (["a", "b"], "a,b"), ((0, 1), "0,1")]),
    (STEPS, [([0, "3-5"], "0|3-5")]),
]
BAD: list[tuple[Kind, list[object]]] = [
    (BOOL, [1, 0, "ON", "true", None]),
    (ON_OFF, ["on", "On", 2, 1.0, None]),
    (FLAG, [2, "1", 0.0]),
    (TEXT_FLAG, ["2", 2, mock.ANY]),
    (IntKind(), [True, 1.5, "1", None]),
    (IntKind(0), [-1]),
    (IntKind(1, 7), [0]),
    (ShareKind(), [0, 1.0, -1e-5, float("nan"), 10**400, "1e-5", True, None, 1j, mock.ANY]),
    (SAVE_GRAPHS, [4, "2", 1.0, [1]]),
    (JIT, ["True", 1]),
    (ALGORITHM, ["Normal", mock.ANY, YamlWord("on")]),
    (TextKind(), ["", 5, ["a"], b"a"]),
    (LIST, [[], [1.5], [["a"]]]),
]
# fmt: on


def test_each_value_has_one_form() -> None:
    for kind, values in GOOD:
        for given, canonical in values:
            found = kind.parse(given)
            assert (type(found), found) == (type(canonical), canonical)
            assert kind.parse(found) == found, "the canonical form is a fixed point"


def test_all_else_is_rejected() -> None:
    for kind, values in BAD:
        for given in values:
            with pytest.raises(BadValue) as error:
                kind.parse(given)
            assert error.value.text
            assert error.value.allowed == kind.allowed != ""


# fmt: off
MEMORY = [
    ("4GB", 4 * GB), ("4gb", 4 * GB), ("4 GB", 4 * GB), (" 4GB ", 4 * GB), ("4GiB", 4 * GB), ("4G", 4 * GB),
    ("1.5GiB", 3 * GB // 2), ("0.5GB", GB // 2), ("512MB", 512 * 2**20), ("64KB", 64 * 2**10), ("1TB", 2**40),
    ("1048576", 2**20), ("1024B", 1024), (2**20, 2**20), ("1B", 1),
]
# fmt: on
BAD_MEMORY = [
    "",
    " ",
    "GB",
    "4XB",
    "4 0GB",
    "-4GB",
    "+4GB",
    "1e3MB",
    "4,5GB",
    "4.GB",
    ".5GB",
    "4GBs",
    "4iB",
    "four GB",
    "4OGB",
    "٤GB",
    "0GB",
    "0.0GB",
    "0.0000000001KB",
    "0",
    0,
    -1,
    4.5,
    float("inf"),
    True,
    None,
    b"4GB",
    ["4GB"],
]  # fmt: skip


def test_memory() -> None:
    for given, size in MEMORY:
        found = MemoryKind().parse(given)
        assert (type(found), found) == (int, size)
    for wrong in BAD_MEMORY:
        with pytest.raises(BadValue) as error:
            MemoryKind().parse(wrong)
        assert repr(wrong) in error.value.text
        assert "2**30" in error.value.allowed
    for many in ("1" * 400 + "GB", "9" * 5000, 10**5000):
        with pytest.raises(BadValue):
            MemoryKind().parse(many)


def test_memory_limits() -> None:
    kind = MemoryKind("between 1GB and 31GB", GB, 31 * GB)
    assert [kind.parse("1GB"), kind.parse("31GB")] == [GB, 31 * GB]
    for given in ("1023MB", "32GB", 2**20):
        with pytest.raises(BadValue, match="out of range"):
            kind.parse(given)


@pytest.mark.parametrize(
    ("given", "meant"), [(4, "4GB"), ("4", "4GB"), (np.int64(16), "16GB"), (512, "512MB"), ("4000", "4000MB"), (257, "257MB")]
)
def test_few_bytes_without_a_unit_are_a_mistake(given: object, meant: str) -> None:
    with pytest.raises(BadValue, match="is a number of bytes; for that few, write") as error:
        MemoryKind().parse(given)
    assert error.value.suggestion == meant
    assert MemoryKind().parse(f"{given}B") == int(str(given))
    assert MemoryKind(minimum=0).parse(given) == int(str(given)), "a limit on workspaces may be small"


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_file_can_hold(text: str) -> None:
    with pytest.raises(BadValue, match="holds a character that neither a file nor a path can hold"):
        TextKind("a path").parse(text)
    assert TextKind("a path").parse("a\udcff") == "a\udcff", "a path that is not UTF-8, as Python reads it"


def test_numbers_of_numpy_are_numbers() -> None:
    for kind in (np.int8, np.uint16, np.int64):
        found = IntKind(0, 9).parse(kind(7))
        assert (type(found), found) == (int, 7)
    assert MemoryKind().parse(np.int64(2**30)) == 2**30
    for wrong in (np.bool_(True), np.float64(3.5), np.array([3])):
        with pytest.raises(BadValue):
            IntKind(0, 9).parse(wrong)


def test_truth_values_of_numpy_are_truth_values() -> None:
    assert BOOL.parse(np.bool_(True)) is True
    assert ON_OFF.parse(np.bool_(False)) == "OFF"


SUGGESTIONS = [
    (ON_OFF, "on", "ON"),
    (ON_OFF, "maybe", ""),
    (BOOL, "True", "quotes make it text: write it without"),
    (MemoryKind(), "4OGB", "40GB"),
    (MemoryKind(), "l6GB", "16GB"),
    (MemoryKind(), "4XB", ""),
    (ShareKind(), "0.5", "write it without quotes"),
    (ShareKind(), "1e-5", "write it without quotes; YAML 1.1 reads 1e-5 as text, and 1.0e-5 as a number"),
    (IntKind(), 60.0, "60"),
    (IntKind(), 60.5, ""),
    (ALGORITHM, "normla", "normal"),
    (ALGORITHM, "precomp_gem", "precomp_gemm"),
    (ALGORITHM, "xyz", ""),
]


@pytest.mark.parametrize(("kind", "given", "suggestion"), SUGGESTIONS)
def test_suggests(kind: Kind, given: object, suggestion: str) -> None:
    with pytest.raises(BadValue) as error:
        kind.parse(given)
    assert str(error.value.suggestion) == suggestion


def test_a_base_60_number_is_explained() -> None:
    with pytest.raises(BadValue) as error:
        IntKind(0).parse("12:30")
    assert "base-60" in error.value.suggestion


def test_a_message_quotes_what_was_written() -> None:
    """`device_target: on` is answered with 'on', not with the True that nobody wrote."""
    with pytest.raises(BadValue, match="'on'"):
        ALGORITHM.parse(YamlWord("on"))


@pytest.mark.parametrize("kind", [ON_OFF, FLAG, TEXT_FLAG, SAVE_GRAPHS, JIT, ALGORITHM], ids=repr)
def test_each_value_of_the_schema_is_taken(kind: Kind) -> None:
    canonical = {repr(kind.parse(value)) for value in kind.schema()["enum"]}
    assert len(canonical) > 1


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        (IntKind(), "a whole number"),
        (IntKind(1), "a whole number, 1 or more"),
        (IntKind(0, 7, zero=False), "a whole number from 0 to 7, not 0"),
        (ON_OFF, "ON (also true, 1), OFF (also false, 0)"),
        (IntKind(0, 7), "a whole number from 0 to 7"),
        (SAVE_GRAPHS, "0 (also false), 1, 2 (also true), 3"),
        (ALGORITHM, "normal, implicit_precomp_gemm (also precomp_gemm)"),
    ],
)
def test_what_is_allowed_in_words(kind: Kind, allowed: str) -> None:
    assert kind.allowed == allowed
