"""Shell completion of ``KEY=VALUE`` words: names of options, then their values."""

from __future__ import annotations

import typer

from msctx.options import OPTIONS, find


def complete(context: typer.Context, incomplete: str) -> list[str]:
    """What a word may go on as. bash makes three words of ``KEY=VALUE`` and completes the last; other shells complete all of it."""
    before = [word for words in context.params.values() if isinstance(words, list | tuple) for word in words]
    while before and before[-1] == "=":
        before.pop()
    if before and find(before[-1]):
        return _values(before[-1], incomplete)
    key, sign, start = incomplete.partition("=")
    if sign:
        return [f"{key}={value}" for value in _values(key, start)]
    names = (name for option in OPTIONS.values() for name in option.spellings if "." in key or "." not in name)
    return sorted(f"{name}=" for name in names if name.startswith(key))


def _values(key: str, start: str) -> list[str]:
    option = find(key)
    schema = option.kind.schema() if option and option.kind else {}
    values = [True, False] if schema.get("type") == "boolean" else schema.get("enum", [])
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return [word for word in dict.fromkeys(words) if word.startswith(start)]
