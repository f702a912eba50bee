"""`msctx init`, and other files to start from; their texts come from the declarations."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from msctx.cli.render import Json, emit, write_new
from msctx.errors import Diagnostic, FileError
from msctx.options import OPTIONS
from msctx.options.layers import presets
from msctx.options.precision_rules import BY_DEFAULT, CHOOSABLE
from msctx.run.record import unwritten
from msctx.schema import dump
from msctx.shipped import CONFIGS

SCHEMA = "msctx.schema.json"
ENTRY = "train.py"
MODELINE = "# yaml-language-server: $schema="
GROUPS = {
    "The same bits in every run": ("deterministic", "thread_invariant", "seed", "seed_by_rank", "seed_scope"),
    "Algorithms of convolutions": ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "fallback"),
    "Precision": ("precision_mode", "conv_allow_tf32", "matmul_allow_tf32", "allow_fp32_emulation"),
    "Memory": ("max_device_memory", "memory_optimize_level"),
    "Device and threads": ("device_target", "device_id", "default_device", "runtime_num_threads"),
    "Finding mistakes": ("strict", "deterministic_warn_only", "pynative_synchronize", "max_call_depth"),
}
"""The options that most experiments may want, under headings; the reference has the others."""
SET = {"deterministic": "ON", "seed": 0}
"""What the starter sets; the other options stand there as comments."""

HEAD = """\
{modeline}
# An experiment of msctx: what to run, and under which options. Uncomment what you need.
#   msctx explain {name}   what each option would do here
#   msctx run {name}       run it, and keep a record
#   msctx options          every option; `msctx options NAME` shows one in full
context:
  # Options to start from ({presets}); options below win over them.
  # preset: reproducible
"""
ONE_DEVICE = """
  # --- One device alone: the same names under gpu_config, cpu_config or ascend_config
  # gpu_config: {conv_allow_tf32: false}
"""
REST = """
experiment:
  name: {name}
  entry: {entry}:main # a function of a file, package.module:function, or the path of a script
  args: {{steps: 50}} # the arguments of that function, by name

record:
  dir: runs # each run leaves a folder here
"""
WIDTH = 116

IMPLEMENTATIONS = """\
; Which implementation each operator uses: for op_precision_mode={name}
;   high_precision    16-bit inputs are computed in float32, the result is rounded once
;   high_performance  PyTorch's own kernel for the dtype
; As it stands this is the list of op_select_implmode=high_precision: change the lines that hurt accuracy or speed. Modules are
; named by their path in a section [ByNodeName], which ctx.watch(model) makes known: head=high_precision
[ByOpType]
"""


def init(
    file: Annotated[str, typer.Argument(help="The file to write; it must not exist yet.")] = "experiment.yaml",
    json_: Json = False,
) -> None:
    """Write a commented experiment file to start from, the schema with which editors check it, and a small training to run."""
    written = [str(path) for path in write(file)]
    own = f"name a function of your {ENTRY} in its experiment.entry, then " if len(written) < 3 else ""
    emit({"written": written}, json_, lambda: f"wrote {', '.join(written)}; next: {own}msctx run {shlex.quote(file)}")


def write_implementations(name: str) -> Path:
    """Write the built-in list of operators with an accurate and a fast implementation, to edit for ``op_precision_mode``."""
    path = Path(name)
    lines = [f"{op}=high_{'precision' if op in BY_DEFAULT else 'performance'}\n" for op in sorted(CHOOSABLE)]
    write_new(path, IMPLEMENTATIONS.format(name=path.name) + "".join(lines))
    return path


def text(name: str) -> str:
    """The starter as YAML."""
    shown = shlex.quote(name) if name.isprintable() else "FILE"
    parts = [HEAD.format(modeline=MODELINE + SCHEMA, name=shown, presets=", ".join(presets()))]
    for heading, names in GROUPS.items():
        parts.append(f"\n  # --- {heading}\n")
        parts += [line + "\n" for option in names for line in _lines(option)]
    stem = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "experiment"
    return "".join(parts) + ONE_DEVICE + REST.format(entry=ENTRY, name=json.dumps(stem, ensure_ascii=False))


def _lines(name: str) -> list[str]:
    """What an option does, as a comment, and the option: set, or as a comment that can be taken in."""
    option = OPTIONS[name]
    what = re.split(r"[.;] ", option.help)[0].rstrip(".")
    values = f": {', '.join(map(str, option.choices))}" if option.choices else ""
    comment = [f"  # {line}" for line in textwrap.wrap(what + values, WIDTH)]
    sign = "" if name in SET else "# "
    return [*comment, f"  {sign}{name}: {json.dumps(SET.get(name, option.example))}"]


def write(name: str) -> list[Path]:
    """Write the starter, and beside it the schema and the entry that it names.

    An existing experiment is left alone, and that is an error; a schema that is there already is brought up to date, and an entry
    is the user's own.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise FileError([Diagnostic("", "an experiment file ends in .yaml or .yml", name)])
    schema, entry = path.parent / SCHEMA, path.parent / ENTRY
    write_new(path, text(path.name))
    try:
        schema.write_text(dump(), encoding="utf-8")
    except OSError as error:
        raise unwritten(schema, error) from None
    if os.path.lexists(entry):
        return [path, schema]
    write_new(entry, (CONFIGS / "files" / ENTRY).read_text(encoding="utf-8"))
    return [path, schema, entry]
