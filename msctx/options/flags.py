"""The flags of the graph kernel: ``--opt_level=2 --dump_as_text``, in one text or in a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msctx.errors import Diagnostic, Mark, nearest
from msctx.options.documents import Parsed, Path, Source, parse_json, read_file
from msctx.options.kinds import INVALID, show


@dataclass(frozen=True)
class _Flag:
    name: str
    value: Any
    key: Mark | None
    place: Mark | None


class GraphKernelFlags:
    """``--name=value --name …`` in one text; ``--path=file.json`` reads further flags from a file."""

    is_file = False
    TRUTH = {**dict.fromkeys(("true", "True", "on", "1"), True), **dict.fromkeys(("false", "False", "off", "0"), False)}
    BOOLEANS = ("dump_as_text",)
    NUMBERS = ("opt_level",)

    def parse(self, text: str, file: str) -> Parsed:
        source = Source(text, file)
        flags: dict[str, _Flag] = {}
        data: dict[str, Any] = {}
        for flag in self._flags(source):
            if flag.name in flags:
                first = flags[flag.name].key
                source.problems.append(Diagnostic(flag.name, f"stands twice; first at {first}", mark=flag.key))
            else:
                flags[flag.name] = flag
                data[flag.name] = self._value(source, flag)

        def mark(path: Path) -> Mark | None:
            flag = flags.get(str(path[0])) if path else None
            return source.mark(()) if flag is None else flag.key if path[-1] == "" else flag.place

        return Parsed({k: v for k, v in data.items() if v is not INVALID}, mark, source.problems)

    def _flags(self, source: Source) -> Iterator[_Flag]:
        before = ""
        for token in re.finditer(r"\S+", source.text):
            start, end = token.span()
            name, _, value = token[0].removeprefix("--").partition("=")
            bare, before = before, token[0] if "=" not in token[0] else ""
            if not token[0].startswith("--") or not name:
                meant = f"{bare}=" if bare.startswith("--") and token[0].isalnum() else "--"  # a value, or a flag
                hint = meant + token[0].lstrip("-") if name.strip("-") else ""
                source.report(
                    (), (start, end), f"{show(token[0])} is not a flag", allowed="--name or --name=value", suggestion=hint
                )
                continue
            has_value = "=" in token[0]
            place = source.place(end - len(value) if has_value else start, end)
            if name == "path":
                yield from self._in_file(source, value, place)
            else:
                yield _Flag(name, value if has_value else True, source.place(start, start + 2 + len(name)), place)

    def _in_file(self, source: Source, path: str, place: Mark) -> Iterator[_Flag]:
        text, why_not = read_file(path)
        if why_not:
            source.problems.append(Diagnostic("path", f"{show(path)} cannot be read: {why_not}", mark=place))
            return
        parsed = parse_json(text, path)
        source.problems.extend(parsed.problems)
        if not isinstance(parsed.data, dict):
            source.problems.append(Diagnostic("", "the file holds no dictionary of flags", mark=parsed.mark(())))
            return
        for name, value in parsed.data.items():
            key = parsed.mark((name, ""))
            if name == "path":
                source.problems.append(Diagnostic(name, "a file of flags cannot name another", mark=key))
            else:
                yield _Flag(name, value, key, parsed.mark((name,)))

    def _value(self, source: Source, flag: _Flag) -> Any:
        """A text as the boolean or number that the flag takes; all else is for the option's own type to judge."""
        if not isinstance(flag.value, str):
            return flag.value
        if flag.name in self.BOOLEANS:
            if flag.value in self.TRUTH:
                return self.TRUTH[flag.value]
            hint = flag.value.lower() if flag.value.lower() in self.TRUTH else nearest(flag.value, self.TRUTH)
            text = f"{show(flag.value)} is not a boolean"
            problem = Diagnostic(flag.name, text, allowed=", ".join(self.TRUTH), suggestion=hint, mark=flag.place)
        elif flag.name in self.NUMBERS:
            if re.fullmatch(r"-?[0-9]{1,18}", flag.value):
                return int(flag.value)
            problem = Diagnostic(flag.name, f"{show(flag.value)} is not a whole number", mark=flag.place)
        else:
            return flag.value
        source.problems.append(problem)
        return INVALID
