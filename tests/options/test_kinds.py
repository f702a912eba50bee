"""The value types: what each takes, the one form it takes it in, and what it says about everything else."""

from unittest import mock

import numpy as np
import pytest

from msctx.options.kinds import (
    BadValue,
    BoolKind,
    ChoiceKind,
    FlagKind,
    IntKind,
    Kind,
    MemoryKind,
    OnOffKind,
    ShareKind,
    TextFlagKind,
    TextKind,
    YamlWord,
)

GB = 2**30
SAVE_GRAPHS = ChoiceKind((0, 1, 2, 3), {False: 0, True: 2})
JIT = ChoiceKind(("auto", "true", "false"), {True: "true", False: "false"})
ALGORITHM = ChoiceKind(("normal", "implicit_precomp_gemm"), {"precomp_gemm": "implicit_precomp_gemm"})
LIST = TextKind(comma_list=True)
STEPS = TextKind(comma_list=True, separator="|")

GOOD = [
    (BoolKind(), True, True),
    (BoolKind(), False, False),
    (BoolKind(), YamlWord("ON"), True),
    (BoolKind(), YamlWord("off"), False),
    (BoolKind(), YamlWord("Yes"), True),
    (BoolKind(), YamlWord("no"), False),
    (OnOffKind(), "ON", "ON"),
    (OnOffKind(), "OFF", "OFF"),
    (OnOffKind(), True, "ON"),
    (OnOffKind(), False, "OFF"),
    (OnOffKind(), 1, "ON"),
    (OnOffKind(), 0, "OFF"),
    (OnOffKind(), YamlWord("on"), "ON"),
    (OnOffKind(), YamlWord("OFF"), "OFF"),
    (FlagKind(), 0, 0),
    (FlagKind(), 1, 1),
    (FlagKind(), True, 1),
    (FlagKind(), "OFF", 0),
    (FlagKind(), YamlWord("on"), 1),
    (TextFlagKind(), "0", "0"),
    (TextFlagKind(), "1", "1"),
    (TextFlagKind(), 1, "1"),
    (TextFlagKind(), False, "0"),
    (TextFlagKind(), "ON", "1"),
    (IntKind(), -3, -3),
    (IntKind(0), 0, 0),
    (IntKind(0, 7), 7, 7),
    (ShareKind(), 1e-5, 1e-5),
    (ShareKind(), np.float32(0.5), 0.5),
    (SAVE_GRAPHS, 3, 3),
    (SAVE_GRAPHS, 1, 1),
    (SAVE_GRAPHS, 0, 0),
    (SAVE_GRAPHS, True, 2),
    (SAVE_GRAPHS, False, 0),
    (SAVE_GRAPHS, YamlWord("on"), 2),
    (JIT, "auto", "auto"),
    (JIT, True, "true"),
    (JIT, YamlWord("off"), "false"),
    (ALGORITHM, "precomp_gemm", "implicit_precomp_gemm"),
    (ALGORITHM, "implicit_precomp_gemm", "implicit_precomp_gemm"),
    (TextKind(), "net/fc", "net/fc"),
    (TextKind(), YamlWord("on"), "on"),
    (TextKind(empty=True), "", ""),
    (LIST, "a,b", "a,b"),
    (LIST, ["a", "b"], "a,b"),
    (LIST, (0, 1), "0,1"),
    (STEPS, [0, "3-5"], "0|3-5"),
]


@pytest.mark.parametrize(("kind", "given", "canonical"), GOOD)
def test_takes(kind: Kind, given: object, canonical: object) -> None:
    found = kind.parse(given)
    assert (type(found), found) == (type(canonical), canonical)
    assert kind.parse(found) == found, "the canonical form is a fixed point"


BAD = [
    (BoolKind(), 1),
    (BoolKind(), 0),
    (BoolKind(), "ON"),
    (BoolKind(), "true"),
    (BoolKind(), None),
    (OnOffKind(), "on"),
    (OnOffKind(), "On"),
    (OnOffKind(), 2),
    (OnOffKind(), 1.0),
    (OnOffKind(), None),
    (FlagKind(), 2),
    (FlagKind(), "1"),
    (FlagKind(), 0.0),
    (TextFlagKind(), "2"),
    (TextFlagKind(), 2),
    (TextFlagKind(), mock.ANY),  # equal to everything, "0" included
    (IntKind(), True),
    (IntKind(), 1.5),
    (IntKind(), "1"),
    (IntKind(), None),
    (IntKind(0), -1),
    (IntKind(None, 7), 8),
    (IntKind(1, 7), 0),
    (ShareKind(), 0),
    (ShareKind(), 1.0),
    (ShareKind(), -1e-5),
    (ShareKind(), float("nan")),
    (ShareKind(), 10**400),
    (ShareKind(), "1e-5"),
    (ShareKind(), True),
    (ShareKind(), None),
    (ShareKind(), 1j),
    (ShareKind(), mock.ANY),
    (SAVE_GRAPHS, 4),
    (SAVE_GRAPHS, "2"),
    (SAVE_GRAPHS, 1.0),
    (SAVE_GRAPHS, [1]),
    (JIT, "True"),
    (JIT, 1),
    (ALGORITHM, "Normal"),
    (ALGORITHM, mock.ANY),
    (ALGORITHM, YamlWord("on")),
    (TextKind(), ""),
    (TextKind(), 5),
    (TextKind(), ["a"]),
    (TextKind(), b"a"),
    (LIST, []),
    (LIST, [1.5]),
    (LIST, [["a"]]),
]


@pytest.mark.parametrize(("kind", "given"), BAD)
def test_refuses(kind: Kind, given: object) -> None:
    with pytest.raises(BadValue) as error:
        kind.parse(given)
    assert error.value.text
    assert error.value.allowed == kind.allowed != ""


MEMORY = [
    ("4GB", 4 * GB),
    ("4gb", 4 * GB),
    ("4 GB", 4 * GB),
    (" 4GB ", 4 * GB),
    ("4GiB", 4 * GB),
    ("4G", 4 * GB),
    ("1.5GiB", 3 * GB // 2),
    ("0.5GB", GB // 2),
    ("512MB", 512 * 2**20),
    ("64KB", 64 * 2**10),
    ("1TB", 2**40),
    ("1024", 1024),
    ("1024B", 1024),
    (1024, 1024),
    (1, 1),
]


@pytest.mark.parametrize(("given", "size"), MEMORY)
def test_memory(given: object, size: int) -> None:
    found = MemoryKind().parse(given)
    assert found == size
    assert type(found) is int


BAD_MEMORY = [
    "", " ", "GB", "4XB", "4 0GB", "-4GB", "+4GB", "1e3MB", "4,5GB", "4.GB", ".5GB", "4GBs", "4iB", "four GB", "4OGB", "٤GB",
    "0GB", "0.0GB", "0.0000000001KB", "0", 0, -1, 4.5, float("inf"), True, None, b"4GB", ["4GB"],
]  # fmt: skip


@pytest.mark.parametrize("given", BAD_MEMORY)
def test_memory_refuses(given: object) -> None:
    with pytest.raises(BadValue) as error:
        MemoryKind().parse(given)
    assert repr(given) in error.value.text
    assert "2**30" in error.value.allowed


@pytest.mark.parametrize("given", ["1" * 400 + "GB", "9" * 5000, 10**5000], ids=["inf", "long text", "long number"])
def test_memory_refuses_more_than_any_machine_has(given: object) -> None:
    with pytest.raises(BadValue):
        MemoryKind().parse(given)


def test_memory_limits() -> None:
    kind = MemoryKind("between 1GB and 31GB", GB, 31 * GB)
    assert [kind.parse("1GB"), kind.parse("31GB")] == [GB, 31 * GB]
    for given in ("1023MB", "32GB", 1):
        with pytest.raises(BadValue, match="out of range"):
            kind.parse(given)


SUGGESTIONS = [
    (OnOffKind(), "on", "ON"),
    (OnOffKind(), "maybe", ""),
    (MemoryKind(), "4OGB", "40GB"),
    (MemoryKind(), "l6GB", "16GB"),
    (MemoryKind(), "4XB", ""),
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


def test_a_quoted_boolean_is_explained() -> None:
    with pytest.raises(BadValue) as error:
        BoolKind().parse("True")
    assert "quotes" in error.value.suggestion


def test_a_base_60_number_is_explained() -> None:
    with pytest.raises(BadValue) as error:
        IntKind(0).parse("12:30")
    assert "base-60" in error.value.suggestion


def test_a_message_quotes_what_was_written() -> None:
    """`device_target: on` is answered with 'on', not with the True that nobody wrote."""
    with pytest.raises(BadValue, match="'on'"):
        ALGORITHM.parse(YamlWord("on"))


@pytest.mark.parametrize("kind", [OnOffKind(), FlagKind(), TextFlagKind(), SAVE_GRAPHS, JIT, ALGORITHM], ids=repr)
def test_each_value_of_the_schema_is_taken(kind: Kind) -> None:
    canonical = {repr(kind.parse(value)) for value in kind.schema()["enum"]}
    assert len(canonical) > 1


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        (IntKind(), "a whole number"),
        (IntKind(1), "a whole number, 1 or more"),
        (IntKind(None, 7), "a whole number, 7 or less"),
        (IntKind(0, 7), "a whole number from 0 to 7"),
        (SAVE_GRAPHS, "0 (also false), 1, 2 (also true), 3"),
        (ALGORITHM, "normal, implicit_precomp_gemm (also precomp_gemm)"),
    ],
)
def test_what_is_allowed_in_words(kind: Kind, allowed: str) -> None:
    assert kind.allowed == allowed
