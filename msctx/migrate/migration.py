"""All that a script sets: its calls merged in order, checked by the options; as a YAML file and data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from msctx.context import explain
from msctx.errors import Diagnostic, Mark, OptionError, one_line
from msctx.migrate.calls import Call, Entry, Reader
from msctx.migrate.script import Script, load
from msctx.migrate.static_values import AT_RUN_TIME
from msctx.mindspore.absent_names import about_variable
from msctx.options import Layer, Settings, device_of, find, make_layer
from msctx.options.option import GROUPS, rank_of
from msctx.plan import TARGETS, Plan, device_named
from msctx.setter_functions import wrong_in_jit_config

LOOKED_FOR = (
    "set_context, set_device, set_deterministic, set_recursion_limit, set_seed, device_context.…, runtime.…; "
    "only in the given file, not in its imports"
)


@dataclass(frozen=True)
class Migration:
    """A script's context calls as options of msctx."""

    file: str
    calls: tuple[Call, ...]
    options: Mapping[str, Any]
    """What the calls come to: the keyword arguments of :func:`msctx.context`, groups as dictionaries."""
    problems: tuple[Diagnostic, ...]
    """What could not be migrated, each with its place and reason."""
    entries: tuple[Entry, ...] = ()
    """The options one by one in the order of the script, with those that stay out."""
    layer: Layer = field(default_factory=Layer)
    """The options checked; their origins are places in the script."""


def read(path: str, device: str | None = None) -> Migration:
    """Read the context calls of a MindSpore script, without running it. *device* takes the place of its device_target.

    Raises:
        FileError: the script is missing, cannot be decoded or is not Python.
    """
    script = load(path)
    merging = _Merging(script, device and device_named(device))
    for found in Reader(script).calls():
        merging.add(found)
    if not merging.calls:
        merging.problems.append(Diagnostic("", "no call that sets MindSpore's context was found", script.file, LOOKED_FOR))
    if merging.device:
        merging.move(merging.device)
    return merging.result()


def canonical(spelling: str) -> str:
    """The spelling to write an option with: its name, or for one device alone its name in that device's group."""
    option, device = find(spelling), device_of(spelling)
    if option and (device is None or option.devices == (device,)):
        return option.name
    groups = [f"{group}.{option.name}" for group in option.groups if GROUPS.get(group) == device] if option else []
    return groups[0] if groups else spelling  # without a group: the newer name itself


def nested(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted spellings as dictionaries in dictionaries; what lies below an option that is set itself keeps its dots.

    The values may be anything; dictionaries among them would be taken for groups by whoever reads the result.
    """
    tree: dict[str, Any] = {}
    for spelling, value in entries.items():
        parts = spelling.split(".")
        depth = next((i for i in range(1, len(parts)) if ".".join(parts[:i]) in entries), len(parts))
        at = tree
        for part in parts[: depth - 1]:
            at = at.setdefault(part, {})
        at[".".join(parts[depth - 1 :])] = value
    return tree


class _Merging:
    """The calls read so far, and what they come to."""

    def __init__(self, script: Script, device: str | None) -> None:
        self.script, self.device = script, device
        self.calls: list[Call] = []
        self.problems: list[Diagnostic] = []
        self.entries: dict[str, Entry] = {}
        self.elsewhere: list[Entry] = []
        """What branches for other devices set."""

    def add(self, call: Call) -> None:
        """One call: its options over those of the calls before it."""
        self.calls.append(call)
        self.problems += call.problems
        if call.left_out:
            self.entries[f"{call.mark}"] = Entry(
                call.function + "(…)" * (not about_variable(call.function)),
                None,
                "",
                call.mark,
                call.left_out,
                inside=call.inside,
            )
        for given in call.given:
            given = self._known_flags(given)
            reason = self._why_not(given)
            entry = replace(
                given,
                spelling=canonical(given.spelling),
                reason=reason,
                rank=rank_of(given.spelling),
                inside=", ".join(filter(None, (given.inside, call.inside))),
            )
            if not reason:
                call.options[entry.spelling] = entry.value
            if self.device in (None, *call.devices):
                self._merge(entry)
            else:
                self.elsewhere.append(replace(entry, reason=reason or f"not for {self.device}"))

    def _why_not(self, given: Entry) -> str:
        """Why an option has to stay out, which is reported as a problem too; ``""`` if it can be migrated."""
        option = find(given.spelling)
        reason = text = given.reason
        if reason.startswith(AT_RUN_TIME):
            text = f"{given.written} is {reason}"
        elif not reason and option is not None and option.replaced_by:
            reason = text = f"deprecated and without effect; instead: {option.replaced_by}"
        if reason:
            self.problems.append(Diagnostic(one_line(given.spelling), text, mark=given.mark))
            return reason
        wrong = self._wrong(given, given.value)
        self.problems += wrong
        return "; ".join([wrong[0].text] + [wrong[0].suggestion] * (" " in wrong[0].suggestion)) if wrong else ""

    def _wrong(self, given: Entry, value: Any) -> list[Diagnostic]:
        """What the options say to a value."""
        group, _, key = given.spelling.partition(".")
        if group == "jit_config" and key and (wrong := wrong_in_jit_config(key, value, self.script.file, given.mark)):
            return wrong
        try:
            make_layer({given.spelling: value}, self.script.file, lambda path: given.mark)
        except OptionError as error:
            return [replace(problem, path=one_line(problem.path)) for problem in error.problems]
        return []

    def _known_flags(self, given: Entry) -> Entry:
        """Of graph_kernel_flags, those that msctx has; MindSpore itself ignores flags that it does not know."""
        flags = given.value.split() if given.spelling == "graph_kernel_flags" and isinstance(given.value, str) else []
        wrong = {flag: found for flag in flags if (found := self._wrong(given, flag))}
        if not wrong or len(wrong) == len(flags):
            return given
        self.problems += (problem for found in wrong.values() for problem in found)
        return replace(given, value=" ".join(flag for flag in flags if flag not in wrong))

    def _merge(self, new: Entry) -> None:
        """Lay an option over what came before; MindSpore's newer functions win over set_context."""
        key = new.spelling if not new.spelling.startswith("**") else str(new.mark)
        old = self.entries.pop(key, new)  # it stands where it was given last
        winner, other = (new, old) if new.rank >= old.rank else (old, new)
        replaced = f"{other.written} of line {other.mark.line}" * (other.value != winner.value)
        self.entries[key] = replace(winner, over=", ".join(filter(None, (old.over, replaced))))

    def move(self, device: str) -> None:
        """Write the options for another device: those in the group of the script's own device are meant for that one, too."""
        there, entries, self.entries = self.entries.get("device_target"), self.entries, {}
        own = device_named(there.value) if there and not there.reason else device
        for key, entry in entries.items():
            option, group, why = find(entry.spelling), device_of(entry.spelling), ""
            if entry is there and (entry.reason or own != device):
                target = next(target for target, name in TARGETS.items() if name == device)
                entry = replace(entry, value=target, reason="", inside=f"where it is {entry.written}")
            elif key == "device_id" and device == "cpu" and entry.value:
                entry = replace(entry, reason=(why := "there is one CPU"))
            elif option and group == own != device and device in option.devices and not device_of(option.name):
                key, entry = option.name, replace(entry, spelling=option.name)
            elif there and group and own not in (group, device) and not entry.reason:
                why = f"MindSpore ignores it with device_target={there.written}; here it acts on {group} alone"
            self.problems += [Diagnostic(one_line(entry.spelling), why, mark=entry.mark)] * bool(why)
            self.entries[key] = max(entry, self.entries.get(key, entry), key=lambda one: one.rank)

    def result(self) -> Migration:
        layer = self._combine()
        options = nested({key: entry.value for key, entry in self.entries.items() if not entry.reason})
        entries = (*self.entries.values(), *self.elsewhere)
        return Migration(self.script.file, tuple(self.calls), options, tuple(self.problems), entries, layer)

    def _combine(self) -> Layer:
        """All options together; those that msctx does not take beside the others stay out."""
        while True:
            taken = {key: entry for key, entry in self.entries.items() if not entry.reason}
            try:
                return make_layer({key: entry.value for key, entry in taken.items()}, self.script.file, self._mark)
            except OptionError as error:
                for problem in error.problems:
                    owner = self._owner(problem.path, taken)
                    self.problems.append(replace(problem, mark=problem.mark or taken[owner].mark))
                    self.entries[owner] = replace(taken[owner], reason=problem.text)

    def _owner(self, path: str, taken: Mapping[str, Entry]) -> str:
        """The option that a problem is about: it may name a part of its value."""
        owners = [key for key in taken if path == key or path.startswith(f"{key}.")]
        return max(owners, key=len) if owners else [*taken][-1]

    def _mark(self, path: tuple[Any, ...]) -> Mark | None:
        return self.entries[self._owner(".".join(map(str, path)), self.entries)].mark


def planned(migration: Migration, device: str | None = None) -> Plan:
    """What the options come to on a device (default: on this machine)."""
    return explain(Settings([migration.layer]), device)


def as_dict(migration: Migration, plan: Plan) -> dict[str, Any]:
    """All of it, for ``--json``."""
    return {
        "file": migration.file,
        "calls": [call.as_dict() for call in migration.calls],
        "options": dict(migration.options),
        "problems": [
            {"path": p.path, "where": str(p.mark or p.where), "problem": p.text, "allowed": p.allowed}
            for p in migration.problems
        ],
        "yaml": as_yaml(migration),
        "plan": plan.as_dict(),
    }


def as_yaml(migration: Migration) -> str:
    """A YAML file that ``msctx explain`` reads; each option shows where it came from, what is left out is a comment."""
    plan = planned(migration)
    rows = [(row.spelling, row.assignments) for row in plan.rows if row.device == plan.main_device]
    watching = [name for name, set_ in rows if any(on and switch.startswith("models.") for switch, on in set_.items())]
    head = [
        f"# What {_base_name(migration.file)} sets, found by `msctx migrate`. Use: msctx exec FILE.yaml -- python loop.py",
        '# In Python: with msctx.context("FILE.yaml") as ctx:',
        *[f"# ctx.watch(model): {', '.join(dict.fromkeys(watching))} acts on the models that it names"] * bool(watching),
        "# Files that options name stand in its folder or in the working directory",
    ]
    tree = nested({entry.spelling: entry for entry in migration.entries if not entry.reason})
    body = [*_yaml(tree, "  "), *(f"  # {_left_out(entry)}" for entry in migration.entries if entry.reason)]
    return "\n".join([*head, "context:" if body else "context: {}", *body, ""])


def _yaml(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml(value, f"{indent}  ")
        else:
            text = yaml.dump(value.value, Dumper=_Dumper, **_ON_ONE_LINE).removesuffix("...\n").removesuffix("\n")
            yield f"{indent}{key}: {text}  # {_comment(value)}"


class _Dumper(yaml.SafeDumper):
    """Writes text in double quotes: YAML 1.1 and 1.2 read that alike."""


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))
_ON_ONE_LINE: Any = {"default_flow_style": True, "width": float("inf"), "allow_unicode": True, "sort_keys": False}


def _base_name(file: str) -> str:
    return one_line(file.replace("\\", "/").rpartition("/")[2])


def _left_out(entry: Entry) -> str:
    spelling = one_line(entry.spelling)
    value = f" = {entry.written}" if entry.written and "*" not in spelling else ""
    return f"{spelling}{value}  # {_comment(entry)}: {one_line(entry.reason, 200)}"


def _comment(entry: Entry) -> str:
    place = f"{_base_name(entry.mark.file)}:{entry.mark.line}"
    over = f"in place of {one_line(entry.over, 200)}" * bool(entry.over)
    return ", ".join(filter(None, (place, entry.inside, over)))
