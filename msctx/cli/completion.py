"""Shell completion: of ``KEY=VALUE`` words the names of options, then their values; of what is shipped the names."""

from __future__ import annotations

from collections.abc import Callable
from glob import escape, glob
from os.path import isdir

import typer

from msctx.options import OPTIONS, find
from msctx.shipped import shipped


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """What a ``KEY=VALUE`` may go on as.

    bash makes three words of it and completes the last; other shells complete all of it. Of the only option that fits, the values
    are offered at once: bash puts a space behind a word that can only go on in one way.
    """
    before = [word for words in context.params.values() if isinstance(words, list | tuple) for word in words]
    while before and before[-1] == "=":
        before.pop()
    if before and find(before[-1]):
        return _values(before[-1], incomplete)
    key, sign, start = incomplete.partition("=")
    if sign:
        return [f"{key}={value}" for value in _values(key, start)]
    names = option(incomplete)
    if len(names) == 1 and (values := _values(names[0], "")):
        return [f"{names[0]}={value}" for value in values]
    return [f"{name}=" for name in names]


def option(incomplete: str) -> list[str]:
    """Names of options; those of groups once a group is named."""
    names = (name for option in OPTIONS.values() for name in option.spellings if "." in incomplete or "." not in name)
    return sorted(name for name in names if name.startswith(incomplete))


def _named(*folders: str) -> Callable[[str], list[str]]:
    """Offers what is shipped in some folders of configs, YAML files, and folders."""

    def complete(incomplete: str) -> list[str]:
        names = {name for folder in folders for name in shipped(folder) if name.startswith(incomplete)}
        files = [path for path in glob(f"{escape(incomplete)}*") if path.endswith((".yaml", ".yml")) or isdir(path)]
        return sorted(names) + sorted(f"{path}/" if isdir(path) else path for path in files)

    return complete


experiment, subject = _named("experiments"), _named("compare", "experiments", "workloads")


def _values(key: str, start: str) -> list[str]:
    found = find(key)
    schema = found.kind.schema() if found and found.kind else {}
    values = [True, False] if schema.get("type") == "boolean" else schema.get("enum", [])
    words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    return [word for word in dict.fromkeys(words) if word.startswith(start)]
