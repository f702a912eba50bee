"""Thousands of mistakes are told as fast as they are read: names are looked for, and shown, for the first of them alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from msctx import errors, mindspore
from msctx.compare import config, workload
from msctx.errors import MOST, MsctxError, OptionError
from msctx.options import OPTIONS, Option, make_layer
from msctx.options.layers import environment_layers
from msctx.options.yamlfile import parse
from msctx.run.config import read

MANY = 3 * MOST
WORDS = [f"unkown_{i}" for i in range(MANY)]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked for."""
    found: list[str] = []
    original = errors.get_close_matches

    def counted(name: str, *args: object, **kwargs: object) -> object:
        found.append(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(errors, "get_close_matches", counted)
    return found


def in_every_form(option: Option, folder: Path) -> Iterator[Any]:
    """Many unknown words as whatever an option may take."""
    lines, pairs = "\n".join(f"{word}={word}" for word in WORDS), dict.fromkeys(WORDS, "x")
    forms: list[Any] = [
        WORDS,
        pairs,
        ",".join(WORDS),
        ",".join(f"{w}:{w}" for w in WORDS),
        " ".join(f"--{w}={w}" for w in WORDS),
    ]
    yield from forms
    if option.names_file:
        types = "\n".join(f"OpType:: {word}:InputDtype:{word}" for word in WORDS)
        for name, text in (("x.json", json.dumps(pairs)), ("x.ini", lines), ("x.cfg", types)):
            (folder / name).write_text(text)
            yield str(folder / name)


def test_of_many_mistakes_in_a_value_names_are_suggested_for_the_first(searches: list[str], tmp_path: Path) -> None:
    for name, option in OPTIONS.items():
        for value in in_every_form(option, tmp_path):
            searches.clear()
            with suppress(OptionError):
                make_layer({name: value}, "test")
            assert len(searches) <= MOST, (name, value)


def test_of_many_unknown_keys_the_first_are_shown() -> None:
    with pytest.raises(OptionError) as error:
        make_layer({"gpu_config": dict.fromkeys(WORDS, 1)}, "test")
    assert len(error.value.problems) == MANY
    assert len(str(error.value)) < 2 * MOST * 200
    assert str(error.value).endswith(f"{MANY} problems, the first {MOST} of which are shown; nothing was changed.")


def in_a_file(text: str, folder: Path) -> str:
    (folder / "x.yaml").write_text(text)
    return str(folder / "x.yaml")


KEYS = "".join(f"  {word}: 1\n" for word in WORDS)
READERS: dict[str, Callable[[Path], object]] = {
    "context": lambda folder: read(in_a_file(f"context:\n{KEYS}", folder)),
    "sections": lambda folder: read(in_a_file(KEYS.replace("  ", ""), folder)),
    "experiment": lambda folder: read(in_a_file(f"experiment:\n{KEYS}", folder)),
    "command line": lambda folder: read(None, [f"{word}=1" for word in WORDS]),
    "compare": lambda folder: config.read(in_a_file(f"compare:\n{KEYS}", folder), config.Given()),
    "axes": lambda folder: config.read(in_a_file(f"axes:\n{KEYS.replace('1', '[1, 2]')}", folder), config.Given()),
    "workload": lambda folder: workload.parse(parse(f"workload:\n{KEYS}", "x.yaml"), "x"),
    "group": lambda folder: make_layer({"gpu_config": dict.fromkeys(WORDS, 1)}, "test"),
    "environment": lambda folder: environment_layers({f"MSCTX_{word}": "1" for word in WORDS}),
    "mindspore": lambda folder: mindspore.set_context(**dict.fromkeys(WORDS, 1)),
}


@pytest.mark.parametrize("reader", READERS)
def test_many_mistakes_in_every_place(reader: str, searches: list[str], tmp_path: Path) -> None:
    with pytest.raises((MsctxError, ValueError)):
        READERS[reader](tmp_path)
    assert 0 < len(searches) <= MOST


def test_a_next_mistake_has_its_suggestion_again(searches: list[str]) -> None:
    for _ in range(MOST + 1):
        with pytest.raises(OptionError, match="did you mean deterministic"):
            make_layer({"determinstic": 1}, "test")
