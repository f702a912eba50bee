"""The commands that run no program: `explain`, `options`, `migrate`, `state`, `diff`, `schema`, and `init`, which writes files."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from msctx import devices, reference
from msctx import migrate as migrating
from msctx.cli import output
from msctx.cli.arguments_and_completion import Device, Json, Texts, Words, argument, complete_option, complete_setting
from msctx.cli.output import emit, print_text
from msctx.context import explain as plan_of
from msctx.context.process_wide import BASE
from msctx.errors import Diagnostic, FileError, OptionError
from msctx.options import OPTIONS, Option, find
from msctx.options.registry import is_dictionary, named
from msctx.reference import catalogue
from msctx.run.experiment_and_entry import file_of, read
from msctx.run.record import unwritten
from msctx.schema import dump
from msctx.shipped import CONFIGS
from msctx.state_and_environment import diff as differences
from msctx.state_and_environment import read_record
from msctx.state_and_environment import state as read_state


def explain(
    words: Annotated[Texts, argument("FILE|PRESET|KEY=VALUE...", "A YAML file, a preset, options.", complete_setting)] = None,
    device: Device = None,
    all_: Annotated[bool, typer.Option("--all", help="All options of MindSpore, CANN and ATC, set or not, by path.")] = False,
    json_: Json = False,
) -> None:
    """What options would do: value, origin, status, switches, and why an option is refused. Changes nothing."""
    if not words and not all_:
        raise OptionError([Diagnostic("", "give a file, options (key=value), or --all", "explain")])
    experiment = read(*file_of(words or (), "explain"))
    plan = plan_of(experiment.settings, device)
    if device and not devices.has(plan.main_device):
        print(f"note: no {plan.main_device} here; the plan assumes a machine that has all it needs", file=sys.stderr)
    if all_:
        rows = catalogue(device or plan.main_device, plan)
        emit(rows, json_, lambda: output.catalogue_page(rows, device or plan.main_device))
    else:
        emit(plan.as_dict(), json_, lambda: output.plan_page(plan))


def options(
    name: Annotated[str | None, argument("NAME", "An option, a group, or a word to search for.", complete_option)] = None,
    json_: Json = False,
) -> None:
    """The reference: all options in a table, or one with its values, devices, status, interactions and an example."""
    if name is None or (is_dictionary(name) and name not in OPTIONS):
        found = reference.listing(reference.members(name) if name else None)
        emit(found, json_, lambda: output.options_table(found))
    elif find(name) is None and (matches := [o.name for o in OPTIONS.values() if name.lower() in _searched(o)]):
        found = reference.listing(matches)
        emit(found, json_, lambda: output.options_table(found))
    else:
        page = reference.describe(named(name))
        emit(page, json_, lambda: output.option_page(page))


def _searched(option: Option) -> str:
    """The names, values and help of an option."""
    values = [getattr(option.kind, part, "") for part in ("meanings", "aliases")]
    return f"{option.spellings} {option.choices} {values} {option.help}".lower()


def schema(json_: Json = False) -> None:
    """The JSON Schema of experiment files, for editors: completion, hover texts and checks. Output is always JSON."""
    print_text(dump().rstrip("\n"))


def migrate(
    file: Annotated[str, typer.Argument(help="A script that sets MindSpore's context. It is read, not run.")],
    device: Device = None,
    json_: Json = False,
) -> None:
    """What a MindSpore script sets, as YAML; on stderr a status for each option. Ends with 1 if it sets nothing."""
    found = migrating.read(file, device)
    plan = migrating.planned(found, device)
    emit(migrating.as_dict(found, plan), json_, lambda: migrating.as_yaml(found).rstrip("\n"))
    if not json_:
        output.show(output.console(sys.stderr), output.plan_page(plan))
    # a mark inside a text begins with the place of the text
    for problem in () if json_ else sorted(found.problems, key=lambda p: [int(n) for n in re.findall(r":(\d+)", str(p.mark))]):
        print(f"note: {problem}", file=sys.stderr)
    raise typer.Exit(0 if found.options else 1)


def state(overrides: Words = None, json_: Json = False) -> None:
    """The whole numerics state of a fresh process: every switch of PyTorch and around it."""
    with BASE.laid_under(read(None, overrides or ()).levels):
        found = read_state()
    emit(found, json_, lambda: output.pairs_table(found))


def diff(
    a: Annotated[str, typer.Argument(help="A state saved by `msctx state --json`, or a run directory.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    json_: Json = False,
) -> None:
    """How two states, or the states and environments of two runs, differ. Ends with 1 if they do."""
    found = differences(read_record(a), read_record(b))
    data = {key: {"a": x, "b": y} for key, (x, y) in found.items()}
    emit(data, json_, lambda: output.pairs_table(found, ("switch", a, b)) if found else "no differences")
    raise typer.Exit(bool(found))


SCHEMA = "msctx.schema.json"
ENTRY = "train.py"


def init(
    file: Annotated[str, typer.Argument(help="The file to write; it must not exist yet.")] = "experiment.yaml",
    json_: Json = False,
) -> None:
    """Write a commented experiment file to start from, the schema with which editors check it, and a small training to run."""
    written = [str(path) for path in write(file)]
    own = f"name a function of your {ENTRY} in its experiment.entry, then " if len(written) < 3 else ""
    emit({"written": written}, json_, lambda: f"wrote {', '.join(written)}; next: {own}msctx run {shlex.quote(file)}")


def text(name: str) -> str:
    """The starter as YAML."""
    starter = (CONFIGS / "files" / "experiment.yaml").read_text(encoding="utf-8")
    shown = shlex.quote(name) if name.isprintable() else "FILE"
    stem = re.sub(r"[^\w.-]+", "-", Path(name).stem).strip("-.") or "experiment"
    return starter.replace("{file}", shown).replace("{stem}", json.dumps(stem, ensure_ascii=False))


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


def write_new(path: Path, text: str) -> None:
    """Write a file for the user, never over another one.

    Raises:
        FileError: the file exists already, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileError([Diagnostic("", "exists already; nothing was written: choose another name", str(path))]) from None
    except (OSError, ValueError) as error:
        raise unwritten(path, error) from None
