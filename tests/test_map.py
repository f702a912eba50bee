"""The map of the design holds: each option is translated, each switch read back, imports run one way, tests mirror code."""

import ast
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import chain, product
from pathlib import Path

from samples import values

import msctx
from msctx.options import DEVICES, OPTIONS, Settings, make_layer
from msctx.options.algorithm_policy import plain
from msctx.options.rules import Excludes, Overrides
from msctx.switches import EXACT, SWITCHES, Switch, present
from msctx.switches.base import UNDOABLE
from msctx.themes import THEMES, Facts, On, translate
from msctx.themes.graph_kernel_flags import FLAGS

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "msctx"
MODULES = sorted(PACKAGE.rglob("*.py"))
THEME_OF = {option.name: theme for theme in THEMES for option in theme.OPTIONS}


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# --- options → themes -------------------------------------------------------------------------------------------------


def test_every_option_is_translated() -> None:
    for name, option in OPTIONS.items():
        plans = product([Settings([make_layer({name: value}, "here")]) for value in values(option)], option.devices)
        assert any(translate(On(device, one, Facts((device,)))).get(name) for one, device in plans), name


def test_every_file_of_themes_is_one() -> None:
    files = {p.stem for p in (PACKAGE / "themes").glob("*.py")} - {"__init__", "base", "shared_by_themes", "graph_kernel_flags"}
    assert files == {theme.__name__.rpartition(".")[2] for theme in THEMES}


# --- themes → switches ------------------------------------------------------------------------------------------------

_FILES = [
    import_module(f"msctx.switches.{p.stem}") for p in sorted((PACKAGE / "switches").glob("*.py")) if p.stem != "__init__"
]
OWNERS = [module for module in _FILES if hasattr(module, "SWITCHES")]
"""The files that hold rows of the table."""


NEEDED = {
    "optypelist_for_implmode": {"op_select_implmode": "high_precision"},
    "deterministic": {"mode": 0},
    "local_rank_id": {"local_device_list": "0,1"},
    "op_compiler_cache_dir.op_cache_ini": {"op_compiler_cache_mode": "enable"},
}
"""Beside what some options have an effect, or more of it."""


@cache
def all_assignments() -> dict[str, set[str]]:
    """Switch → the options that assign it: each value of each option on each device, alone and beside the one it needs."""
    found: dict[str, set[str]] = {}
    beside = (
        {},
        {"deterministic": "ON"},
        {"mode": 0},
        {"device_target": "GPU"},
        {"device_target": "Ascend"},
        {"device_target": "CPU"},
    )
    for option in OPTIONS.values():
        for value in values(option):
            for other in beside if option.source == "msctx" else ({}, NEEDED.get(option.name, {})):
                for device in DEVICES:
                    for switch in msctx.explain({**other, option.name: value}, device=device).assignments:
                        found.setdefault(switch, set()).add(option.name)
    return found


def test_every_assignment_is_a_switch_that_can_be_written_and_every_written_switch_is_assigned() -> None:
    assigned = all_assignments()
    assert {name: options for name, options in assigned.items() if name not in SWITCHES} == {}
    written = {name for name, switch in SWITCHES.items() if switch.write is not None}
    assert set(assigned) == written


def test_every_switch_can_be_read_and_shows_as_plain_data() -> None:
    for switch in present():
        value = plain(switch.read())
        assert json.loads(json.dumps(value)) == value, switch.name


def test_what_a_switch_reads_it_takes_back() -> None:
    for switch in present():
        name = switch.name
        if switch.write is None or switch.restore not in EXACT:
            continue
        before, state = switch.read(), switch.take()
        switch.put_back(state)
        assert switch.read() == before, name
        if before is not None and not switch.is_satisfied(before):  # as found it may be overruled, as written not
            switch.set(before)
            assert switch.is_satisfied(before), name
            switch.put_back(state)
            assert switch.read() == before, name


def test_switches_are_declared_soundly() -> None:
    tables = [table for owner in OWNERS for table in vars(owner).values() if type(table) is tuple]
    declared = Counter(row.name for row in chain(*tables) if isinstance(row, Switch))
    assert {name: count for name, count in declared.items() if count != 1} == {}, "names are unique"
    assert set(declared) == set(SWITCHES), "every file is listed"
    assert len(fields(Switch)) <= 9, "what only one row needs lives in that row's functions"
    for name, switch in SWITCHES.items():
        assert name.partition(".")[0] in (
            *("torch", "env", "python", "rng", "native", "models", "observers", "graph", "session"),
        )
        assert switch.scope in ("process", "thread", "inherited")
        assert switch.restore in UNDOABLE or switch.lasts.count(" ") > 2, name
        assert switch.write is not None or (switch.state is None and switch.restore == "exact"), name


# --- imports ----------------------------------------------------------------------------------------------------------

LAYERS = (
    ("_version", "errors", "import_hooks", "shipped", "tables"),
    ("outside_dynamo", "deferred_interrupts"),
    ("notices", "options", "torch_config_overrides"),
    ("themes", "native"),
    ("memory",),
    ("observers",),
    ("graph",),
    ("switches",),
    ("devices", "plan"),
    ("amp", "reference"),
    ("context",),
    ("at_start", "state_and_environment", "setter_functions"),
    ("integrations",),
    ("device_context", "mindspore", "run", "runtime"),
    ("compare", "verify"),
    ("migrate", "schema"),
    ("cli",),
    ("__main__",),
)
"""From below: a module imports only what is further below, and its own package. A new module needs its place here."""
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
ROOT_RANK = RANKS["state_and_environment"]
"""msctx itself, which imports the context and the inspection."""
ONLY = {
    "switches": {
        "errors",
        "graph",
        "import_hooks",
        "native",
        "memory",
        "observers",
        "deferred_interrupts",
        "tables",
        "torch_config_overrides",
    }
}
WITHOUT_TORCH = ("_version", "errors", "options", "plan", "reference", "schema", "themes")
"""What runs before torch is imported, or without it."""


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, anywhere in it; the names of ``from package import`` one by one."""
    package = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}"


@cache
def unit(name: str) -> str | None:
    """The file or package right under msctx that a dotted name lies in: ``msctx.options.kinds.Bool`` → ``options``."""
    parts = name.split(".")
    if parts[0] != "msctx":
        return None
    if (
        len(parts) > 1
        and ((PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists())
        and parts[1] not in msctx.__all__
    ):
        return parts[1]
    if parts[1:2] == ["context"] and len(parts) > 2:  # msctx.context is both the package and the function
        return "context"
    return "msctx"


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_every_module_has_its_rank() -> None:
    assert set(RANKS) == {unit_of(path) for path in MODULES} - {"__init__"}


def test_imports_run_one_way() -> None:
    wrong = []
    for path in MODULES:
        own = unit_of(path)
        for line, name in imports(path) if own != "__init__" else ():
            other = unit(name)
            if other in (None, own):
                continue
            rank = ROOT_RANK if other == "msctx" else RANKS[str(other)]
            if rank >= RANKS[own] or (own in ONLY and other not in ONLY[own]):
                wrong.append(f"{path}:{line} imports {name}")
    assert wrong == []


def test_some_modules_never_import_torch() -> None:
    paths = [path for path in MODULES if unit_of(path) in WITHOUT_TORCH]
    wrong = [f"{p}:{line}" for p in paths for line, name in imports(p) if name.split(".")[0] in ("torch", "torch_npu")]
    assert wrong == []


def test_the_ledger_knows_no_option() -> None:
    tree = ast.parse((PACKAGE / "context" / "ledger.py").read_text(encoding="utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert words & set(OPTIONS) == set()


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_begins_with_its_job() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert text.startswith('"""') or path.name == "_version.py", f"the first line of {path} must say its job"


def _text_of(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")) if path != Path(__file__))


MOST = 3
"""Files of msctx in which a newcomer finds an option: its theme, the row of its switch, and what acts on it."""


def _names_in(text: str) -> set[str]:
    """Each dotted name of a text, and what it begins with: a, a.b and a.b.c of a.b.c."""
    found = {*re.findall(r"(?<![\w.])\w+(?:\.\w+)*", text)}
    return {".".join(parts[: n + 1]) for parts in (name.split(".") for name in found) for n in range(len(parts))}


def test_one_grep_finds_an_option_in_few_files() -> None:
    """A line of data/scattered.txt is a name in more files than that; the list may only shrink (``UPDATE_MAP=1`` removes names)."""
    file = TESTS / "data" / "scattered.txt"
    words = Counter(word for path in MODULES for word in _names_in(path.read_text(encoding="utf-8")))
    found = {name for name in OPTIONS if words[name.removeprefix("graph_kernel_flags.")] > MOST}
    allowed = {*file.read_text().split()}
    assert found - allowed == set(), f"each is named in more than {MOST} files of msctx/"
    if os.environ.get("UPDATE_MAP"):
        file.write_text("".join(f"{name}\n" for name in sorted(allowed & found)))
        allowed &= found
    assert len(allowed - found) <= 5, f"UPDATE_MAP=1 pytest tests/test_map.py removes {sorted(allowed - found)}"


def test_one_grep_finds_the_whole_chain_of_an_option() -> None:
    """A newcomer finds an option's declaration, its rules and its translation in one file of msctx, the switches that it assigns
    in msctx/switches, and its test: the names are written out in all of them. Flags are a table of the theme of fusion."""
    files = {
        path: path.read_text(encoding="utf-8") for folder in ("themes", "switches") for path in (PACKAGE / folder).glob("*.py")
    }
    tests = _text_of(TESTS) + "".join(path.read_text() for path in (TESTS / "data").glob("plans-*.txt"))
    flags = {flag.name: flag.word for flag in FLAGS}
    for theme in THEMES:
        own = files[Path(str(theme.__file__))]
        declared = own[own.index("OPTIONS = (") : own.index("RULES: ")]
        rest = own.replace(declared, "")
        for option in theme.OPTIONS:
            name = option.name
            if name in flags:
                assert f'"{flags[name]}"' in files[PACKAGE / "themes" / "graph_kernel_flags.py"], name
                continue
            assert declared.count(f'ption("{name}",') + declared.count(f'extension("{name}",') == 1, f"{name} is declared once"
            assert f'"{name}"' in rest or option.replaced_by, f"{name} is translated in the file that declares it"
            assert re.search(rf"\b{re.escape(name)}\b", tests), f"{name} has a test"
        for rule in theme.RULES:
            parts = {Overrides: ("second", "first"), Excludes: ("first",)}.get(type(rule), ("option",))
            about = [getattr(rule, part) for part in parts]
            assert any(THEME_OF[when.name] is theme for when in about), f"{rule} stands beside an option that it is about"
    for place in ("themes", "switches"):
        text = _text_of(PACKAGE / place)
        assert [switch for switch in all_assignments() if f'"{switch}"' not in text] == [], place
