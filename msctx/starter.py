"""The commented file with which ``msctx init`` starts an experiment; written from the declarations."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from msctx.errors import FileError, Problem
from msctx.options import OPTIONS, Option
from msctx.options.layers import presets
from msctx.reference import on_device
from msctx.schema import dump

SCHEMA = "msctx.schema.json"
MODELINE = "# yaml-language-server: $schema="
SET = {"deterministic": '"ON"', "seed": "0"}
"""What the starter sets; the other options that are carried out stand there as comments."""

HEAD = """\
# An experiment of msctx: what to run, and under which options.
#   msctx explain {name}      what each option would do here
#   msctx run {name}          run it, and keep a record
#   msctx options             every option; `msctx options NAME` says all about one
"""
REST = """
experiment:
  name: {stem}
  entry: train.py:main # a function of a file, package.module:function, or the path of a script
  args: {{}} # the arguments of that function, by name

record:
  dir: runs # each run leaves a folder here
"""


def text(name: str) -> str:
    """The starter as YAML."""
    lines = [f"  # preset: {'|'.join(presets())}  (a set of options to start from; what stands here wins over it)"]
    for option in OPTIONS.values():
        if "." not in option.name and any(on_device(option, d).status in ("honoured", "approximated") for d in option.devices):
            lines += _lines(option)
    head = MODELINE + SCHEMA + "\n" + HEAD.format(name=name)
    return head + "context:\n" + "\n".join(lines) + "\n" + REST.format(stem=Path(name).stem)


def _lines(option: Option) -> list[str]:
    help_ = option.help.partition(". ")[0].rstrip(".")
    comment = [f"  # {line}" for line in textwrap.wrap(help_, 96)]
    value = SET.get(option.name)
    example = json.dumps(option.example)
    return ["", *comment, f"  {option.name}: {value}" if value else f"  # {option.name}: {example}"]


def write(name: str) -> list[Path]:
    """Write the starter and the schema that it names; an existing file is left alone, and that is an error."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise FileError([Problem("", "an experiment file ends in .yaml", name, suggestion=f"{name}.yaml")])
    schema = path.parent / SCHEMA
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text(path.name))
        schema.write_text(dump(), encoding="utf-8")
    except FileExistsError:
        raise FileError([Problem("", "is there already; nothing was written", name)]) from None
    except OSError as error:
        raise FileError([Problem("", f"cannot be written: {error.strerror}", name)]) from None
    return [path, schema]
