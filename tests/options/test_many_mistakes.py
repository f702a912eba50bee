"""Of thousands of mistakes the first are told: to look for the name that was meant takes milliseconds each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from msctx import errors
from msctx.errors import MOST, OptionError
from msctx.options import OPTIONS, Option, make_layer

WORDS = [f"unkown_{i}" for i in range(3 * MOST)]


def in_every_form(option: Option, folder: Path) -> Iterator[Any]:
    """Many unknown words as whatever an option may take."""
    lines, pairs = "\n".join(f"{word}={word}" for word in WORDS), dict.fromkeys(WORDS, "x")
    yield from (WORDS, pairs, ",".join(WORDS), ",".join(f"{w}:{w}" for w in WORDS), " ".join(f"--{w}={w}" for w in WORDS))
    if option.names_file:
        types = "\n".join(f"OpType:: {word}:InputDtype:{word}" for word in WORDS)
        for name, text in (("x.json", json.dumps(pairs)), ("x.ini", lines), ("x.cfg", types)):
            (folder / name).write_text(text)
            yield str(folder / name)


def test_of_many_mistakes_in_a_value_names_are_suggested_for_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    searches: list[str] = []
    original = errors.get_close_matches
    monkeypatch.setattr(errors, "get_close_matches", lambda name, *a, **k: searches.append(name) or original(name, *a, **k))
    for name, option in OPTIONS.items():
        for value in in_every_form(option, tmp_path):
            searches.clear()
            with suppress(OptionError):
                make_layer({name: value}, "test")
            assert len(searches) <= 2 * MOST, (name, value)


def test_of_many_unknown_keys_the_first_are_shown() -> None:
    with pytest.raises(OptionError) as error:
        make_layer({"gpu_config": dict.fromkeys(WORDS, 1)}, "test")
    assert str(error.value).count("gpu_config has no such key") == MOST
    assert str(error.value).endswith(f"the first {MOST} problems; nothing was changed.")
