"""The documentation is true: its examples run, its commands exist, its tables and pictures are those that the code gives."""

from __future__ import annotations

import io
import json
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import is_dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from typer.cli import get_docs_for_click

import msctx
from msctx.cli import app, main
from msctx.compare import config as comparisons
from msctx.migrate.calls import NO_COUNTERPART
from msctx.mindspore.keys_and_rules import KEYS
from msctx.options import DEVICES, OPTIONS, Option, make_layer
from msctx.options.option import FLAGS_SOURCE, device_of
from msctx.options.precision_policy import CLASSES, DTYPES, LEAVE, MODES, V2, PrecisionRule
from msctx.options.registry import instead, vocabulary
from msctx.options.switch_values import TWINS, WITHOUT_A_TWIN
from msctx.plan import DONE
from msctx.reference import _companions, _outcome, _values, on_device, typical
from msctx.switches import SWITCHES
from msctx.themes.graph_kernel_flags import FLAGS, PATTERN

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
FIND_A_NAN = DOCS / "tutorials/find-a-nan.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
LIBRARIES = ("accelerate", "hydra", "lightning", "transformers")
UPDATE = "UPDATE_DOCS=1 pytest tests/test_docs.py"


def blocks(language: str, *pages: Path) -> list[Any]:
    """The code blocks marked as *language*, named by page and line; fences pair up in order."""
    found = []
    for page in pages or PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```([^`\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            if block[1] == language:
                beyond = re.search(rf"\b({'|'.join(LIBRARIES)})\b", block[2]) and language
                name = f"{page.stem}:{text.count(chr(10), 0, block.start()) + 1}"
                found.append(pytest.param(block[2], id=name, marks=[pytest.mark.full] * bool(beyond)))
    return found


def lines() -> list[str]:
    """What the blocks of commands and of output have."""
    return [line.removeprefix("$ ") for (text,) in (block.values for block in blocks("")) for line in text.splitlines()]


def commands() -> Iterator[list[str]]:
    for line in lines():
        if line.startswith("msctx "):
            yield shlex.split(line, comments=True)[1:]


def skip_without_libraries(block: str) -> None:
    for name in LIBRARIES:
        if re.search(rf"\b{name}\b", block):
            pytest.importorskip(name)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Callable[..., str]) -> None:
    skip_without_libraries(block)
    monkeypatch.chdir(tmp_path)
    ways = {
        "def test_": "import pytest; sys.exit(pytest.main(['-p', 'msctx.integrations.pytest_plugin', 'example.py']))",
        "main(run": "from msctx.cli import main; main(['run', 'example.py:main', '--out', 'run'])",
        "__main__": "import runpy; runpy.run_path('example.py', run_name='__main__')",
    }
    if (way := next((code for sign, code in ways.items() if sign in block), None)) is None:
        exec(compile(block, "example", "exec"), {})
        return
    Path("example.py").write_text(block, encoding="utf-8")
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.argv = ['example.py']; {way}"
    passes(code, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_is_read_without_an_error(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_libraries(block)
    shutil.copytree(ROOT / "configs" / "experiments", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(block, encoding="utf-8")
    if "compare:" in block:
        assert comparisons.read("x.yaml", comparisons.Given()).points
        return
    with pytest.raises(SystemExit) as end:
        main(["run", "x.yaml", "--dry-run"] if "experiment:" in block else ["explain", "x.yaml"])
    assert not end.value.code


def test_commands_and_their_flags_exist() -> None:
    known = typer.main.get_command(app)
    shown = list(commands())
    assert len(shown) > 10
    for words in shown:
        command: Any = known
        while hasattr(command, "commands"):
            assert words[0] in command.commands, words
            command, words = command.commands[words[0]], words[1:]
        words = words[: words.index("--")] if "--" in words else words  # what follows belongs to another command
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= flags, words


def test_dry_runs_of_the_commands_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    runs = [words for words in commands() if words[0] == "run" and "FILE" not in words]
    assert len(runs) >= 3
    for words in runs:
        with pytest.raises(SystemExit) as end:
            main([*words, "--dry-run"])
        assert not end.value.code, words


def holds(page: Path, name: str, text: str, update: bool) -> bool:
    """Whether a page has *text* between the markers of a name; or it is written there."""
    whole = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: {UPDATE} -->\n", f"<!-- /{name} -->"
    head, found, rest = whole.partition(begin)
    inside, _, tail = rest.partition(end)
    assert found, f"{page.name} has no place for {name}"
    if update:
        page.write_text(head + begin + text + end + tail, encoding="utf-8")
    return update or inside == text


@pytest.fixture
def update(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether generated parts are written anew instead of compared."""
    requested = bool(os.environ.get("UPDATE_DOCS"))
    monkeypatch.delenv("UPDATE_DOCS", raising=False)
    return requested


def shows(before: str, text: str, update: bool, page: Path = README) -> bool:
    whole = page.read_text(encoding="utf-8")
    head, found, rest = whole.partition(before)
    _, inside, tail = re.split(r"^```\n(.*?)^```$", rest, maxsplit=1, flags=re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has no output after {before!r}"
    if update:
        page.write_text(f"{head}{before}```\n{text}\n```{tail}", encoding="utf-8")
    return update or re.sub(r"[\d.]+(e-\d+)?|\s+|─+", "", inside) == re.sub(r"[\d.]+(e-\d+)?|\s+|─+", "", text)


def test_the_explanation_shown_is_what_is_printed(monkeypatch: pytest.MonkeyPatch, update: bool) -> None:
    monkeypatch.setenv("COLUMNS", "128")
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main(["explain", "deterministic=ON", "--device", "cuda"])
    shown = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    assert shows("`msctx explain deterministic=ON --device cuda`\n", shown, update)


@pytest.mark.parametrize("block", blocks("python3", README, FIND_A_NAN))
def test_the_output_shown_is_what_an_example_prints(block: str, tmp_path: Path, update: bool) -> None:
    (tmp_path / "train.py").write_text(block, encoding="utf-8")
    run = "import runpy, torch, msctx; torch.manual_seed(0); runpy.run_path('train.py', {'torch': torch, 'msctx': msctx})"
    environment = os.environ | {"COLUMNS": "128"}
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(" ")]
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
    page = README if f"{block}```\n" in README.read_text(encoding="utf-8") else FIND_A_NAN
    assert shows(f"{block}```\n", printed or said[-1].rpartition(f"{tmp_path}/")[2], update, page)


def test_the_difference_shown_is_what_verify_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool) -> None:
    page = DOCS / "how-to/verify.md"
    (block,) = (found.values[0] for found in blocks("python3", page))
    (tmp_path / "train.py").write_text(f"import torch\n{block}", encoding="utf-8")
    command = [sys.executable, "-m", "msctx", "verify", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"COLUMNS": "128"}, capture_output=True, text=True)
    assert done.returncode == 1
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    at = "`msctx verify train.py` prints\n"  # its numbers are random, and stay unless words change
    assert shows(at, printed, False, page) or (update and shows(at, printed, update, page))


def test_the_quickstart_prints_what_it_shows_and_is_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: bool, native_core: None
) -> None:
    page, names, cells = DOCS / "tutorials/quickstart.md", {"__name__": "quickstart"}, []
    monkeypatch.setenv("COLUMNS", "128")
    torch.manual_seed(0)
    for block in [found.values[0] for found in blocks("python3", page)]:
        out = io.StringIO()
        with redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(compile(block, "quickstart", "exec"), names)
        said = [f"{w.category.__name__}: {w.message}" for w in caught if issubclass(w.category, msctx.MsctxWarning)]
        if printed := "\n".join([*(line.rstrip() for line in out.getvalue().splitlines()), *said]).strip("\n"):
            assert shows(f"{block}```\n", printed, update, page)
    for part in re.split(r"^(```\w*\n.*?^```\n)", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
        kind = "code" if part.startswith("```python3") else "markdown"
        source = part.strip().removeprefix("```python3\n").removesuffix("\n```") if kind == "code" else part.strip()
        more = {"outputs": [], "execution_count": None} if kind == "code" else {}
        if part.startswith("```\n"):
            text = part.removeprefix("```\n").removesuffix("```\n").splitlines(keepends=True)
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
        elif source:
            cells.append({"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True), **more})
    metadata = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    text = json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}, indent=1) + "\n"
    if update:
        page.with_suffix(".ipynb").write_text(text, encoding="utf-8")
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == text


def test_the_error_shown_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = next(text for (text,) in (b.values for b in blocks("")) if text.startswith("error: x.yaml"))
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("context:\n  determinstic: ON\n")
    with pytest.raises(SystemExit):
        main(["explain", "x.yaml"])
    assert capsys.readouterr().err == block


def is_partial(option: Option, device: str) -> bool:
    """Whether some values of an option take effect on a device, but not a typical one."""
    outcome = _outcome(option, typical(option), device)
    return on_device(option, device).status in DONE and outcome is not None and outcome.status not in DONE


def cell(option: Option, device: str) -> str:
    """The status; where other values are refused, which, as they are meant."""
    status = on_device(option, device).status
    outcomes = [(value, _outcome(option, value, device)) for value in option.choices or _values(option)]
    given = [value for value, outcome in outcomes if outcome is not None and outcome.status == "refused"]
    meant = dict.fromkeys(f"`{make_layer({option.name: v}, 'docs').settings[option.name].value}`" for v in given)
    if status in DONE and meant and not option.names_file:
        return f"{status}; refused: {', '.join(meant)}"
    return status + " for some values" * is_partial(option, device)


def test_the_options_shown_are_those_that_are_declared(update: bool) -> None:
    table = ["| option | what it does | CPU | NVIDIA | Ascend (never run on a chip) |", "|---|---|---|---|---|"]
    known = [option for option in OPTIONS.values() if option.source != FLAGS_SOURCE]
    shown = [option for option in known if any(on_device(option, device).status in DONE for device in DEVICES)]
    for option in sorted(shown, key=lambda o: o.source == "msctx"):
        cells = " | ".join(cell(option, device) for device in DEVICES)
        own, first = " (msctx)" * (option.source == "msctx"), re.split(r"(?<=[\w)])\. ", option.help)[0]
        table.append(f"| `{option.name}`{own} | {first.rstrip('.')} | {cells} |")
    counts = [[*map([on_device(option, device).status for option in shown].count, DONE)] for device in DEVICES]
    told = ["{} options take effect ({} honoured, {} approximated)".format(sum(n), *n) for n in counts]
    ours, readme = sum(option.source == "msctx" for option in known), README.read_text(encoding="utf-8")
    for row, text in zip(("CPU", "NVIDIA", "Ascend"), told, strict=True):
        assert re.search(rf"^\| {row}.*\| {re.escape(text)}", readme, re.MULTILINE), text
    assert (whole := f", of {len(known)}: {len(known) - ours} of MindSpore and CANN, {ours} of msctx.") in readme, whole
    table += ["", "On a CPU {}. On NVIDIA {}. On Ascend {}.".format(*told)]
    assert holds(DOCS / "reference/options.md", "options", "\n".join(table) + "\n", update)


def test_the_settings_that_stay_are_those_of_the_switches(update: bool) -> None:
    by: dict[str, dict[str, None]] = {}
    for option, device in product(OPTIONS.values(), DEVICES):
        for switch in on_device(option, device).assignments:
            by.setdefault(switch, {})[f"`{option.name}`"] = None
    rows = (f"| `{s.name}` | {', '.join(by[s.name])} | {s.lasts} |" for s in SWITCHES.values() if s.lasts)
    table = ["| setting | of | why it stays |", "|---|---|---|", *rows]
    assert holds(DOCS / "explanation/concepts.md", "lasting", "\n".join(table) + "\n", update)


def test_what_the_options_in_place_of_torchs_flags_set(update: bool) -> None:
    table = ["| PyTorch | msctx | sets, on CUDA |", "|---|---|---|"]
    calls = yaml.safe_load((ROOT / "tests/data/from_torch.yaml").read_text(encoding="utf-8"))
    for call, options in calls.items():
        device = "cpu" if "flush_denormal" in options else "cuda"  # GPUs have no such flag
        rows = msctx.explain(options, device=device).rows
        assert all(row.status in DONE for row in rows)
        values = {switch: value for row in rows for switch, value in row.assignments.items() if value is not None}
        sets = {name: "…" if is_dataclass(value) or "{" in str(value) else value for name, value in values.items()}
        given = ", ".join(f"{name}={value!r}" for name, value in options.items()).replace("'", '"')
        shown = ", ".join(f"`{name} = {value}`" for name, value in sets.items())
        table.append(f"| `{call}` | `{given}` | {shown}{', on the CPU' * (device == 'cpu')} |")
    assert holds(DOCS / "migrate/from-torch.md", "from-torch", "\n".join(table) + "\n", update)


def reasons(option: Option, device: str) -> Iterator[str]:
    """What a plan says of a typical value; and what else of other values, and in graph mode."""
    first = on_device(option, device)
    known = [*first.reason.rstrip(".").split("; "), "", "nothing is requested"]
    yield from known[:-2]
    given = {"mode": "GRAPH_MODE", **_companions(option.name), option.name: typical(option)}
    graphs = [] if is_partial(option, device) else msctx.explain(given, device=device).rows
    others = [
        *((f"`{value}`", on_device(option, device, value)) for value in option.choices),
        *(("in GRAPH_MODE", row) for row in graphs if (row.option, row.device) == (option.name, device)),
    ]
    for name, other in others:
        more = [part for part in other.reason.rstrip(".").split("; ") if part not in known]
        if more and other.status in DONE:
            yield f"{name}{f', {other.status}' * (other.status != first.status)}: {'; '.join(more)}"


def test_the_differences_from_mindspore_are_those_of_the_plans(update: bool) -> None:
    table = ["| key | newer name | CPU | NVIDIA | Ascend (never run on a chip) | difference |", "|---|---|---|---|---|---|"]
    for option in [option for option in OPTIONS.values() if option.source.startswith("mindspore.set_context")]:
        found: dict[str, list[str]] = {}
        for device, name in zip(DEVICES, ("CPU", "NVIDIA", "Ascend"), strict=True):
            for reason in reasons(option, device):
                found.setdefault(reason, []).append(name)
        where: dict[str, list[str]] = {}
        for reason, names in sorted(found.items(), key=lambda one: -len(one[1])):
            if reason and not reason.startswith("it has no meaning"):
                where.setdefault("" if len(names) == len(DEVICES) else f"{', '.join(names)}: ", []).append(reason)
        newer = [f"`{name}`" for name in option.spellings if re.match(r"device_context\.|runtime\.|set_", name)]
        path = option.paths[0]
        cells = [
            f"`{path}`",
            ", ".join(newer),
            *("flat: " * (device_of(path) not in (None, device)) + cell(option, device) for device in DEVICES),
            "<br>".join(names + "; ".join(parts) for names, parts in where.items()),
        ]
        table.append(f"| {' | '.join(cells)} |")
    assert holds(DOCS / "migrate/from-mindspore.md", "from-mindspore", "\n".join(table) + "\n", update)


def test_the_keys_of_mindspore_without_a_counterpart_are_those_of_the_messages(update: bool) -> None:
    table, names = ["| key | why | instead |", "|---|---|---|"], re.compile(rf"\b({'|'.join(OPTIONS)})\b")
    table += [
        f"| `{word}` | {why} | {names.sub(lambda found: f'`{found[0]}`', instead(word))} |"
        for word, why in vocabulary()["later"].items()
        if why.startswith("MindSpore")
    ]
    table += [f"| `{word}` | MindSpore ignores it | {advice} |" for word, advice in vocabulary()["ignored"].items()]
    page = (DOCS / "migrate/from-mindspore.md").read_text(encoding="utf-8")
    calls = page.partition("## Calls outside the context")[2].partition("##")[0]
    said = {*re.findall(r"\w+", " ".join(re.findall("`.*?`", calls)))}
    for advice in dict.fromkeys(NO_COUNTERPART.values()):
        named = [name for name, why in NO_COUNTERPART.items() if why == advice]
        if not any(name.rpartition(".")[2] in said for name in named):
            table.append(f"| {', '.join(f'`{name}`' for name in named)} | no option | {advice} |")
    assert holds(DOCS / "migrate/from-mindspore.md", "without-counterpart", "\n".join(table) + "\n", update)
    skipped = ", ".join(f"`{name}`" for name, key in KEYS.items() if key.targets and "CPU" not in key.targets)
    assert holds(DOCS / "migrate/from-mindspore.md", "skipped", skipped + "\n", update)


def test_the_commands_shown_are_those_that_exist(update: bool) -> None:
    command: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="msctx")
    assert holds(DOCS / "reference/cli.md", "cli", text[text.index("**Commands**") :], update)


def test_each_public_name_has_an_example() -> None:
    code = "".join(block.values[0] for block in blocks("python", DOCS / "reference/api.md"))
    shown = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    names = {*dir(msctx)} - {"__version__"}
    objects = names | {*re.findall(r":: msctx\.(run\.\w+)", shown)}
    assert {name for name in objects if not re.search(rf"msctx\.{name}\b", code)} == set()
    rows = re.findall(r"^\| (`.*?`) \|", shown, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == names


def test_the_messages_of_troubleshooting_exist() -> None:
    """msctx's in its sources, PyTorch's in the libraries of the installed torch."""
    page = (DOCS / "how-to/troubleshooting.md").read_text(encoding="utf-8").split("## PyTorch's messages")
    ours, torchs = (re.findall(r"^\| `(.*?)` \|", part, re.MULTILINE) for part in page)
    sources = [path for folder, kind in (("msctx", "*.py"), ("kernels", "*.cpp")) for path in (ROOT / folder).rglob(kind)]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert len(ours) > 9
    assert [words for words in ours if words not in code] == []
    missing = set(torchs)
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch*.so")):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            missing = {words for words in missing if text.find(words.encode()) < 0}
    assert len(torchs) > 3
    assert missing == set()


def test_the_flags_of_graph_kernel_flags_shown_are_those_that_are_declared(update: bool) -> None:
    table = ["| flag | what it does | settings | CPU | NVIDIA |", "|---|---|---|---|---|"]
    for flag in [flag for flag in FLAGS if not flag.why_not]:
        cells = " | ".join(on_device(flag, device).status for device in ("cpu", "cuda"))
        given = "" if flag.example is True else f"={flag.example}"
        table.append(f"| `--{flag.word}{given}` | {flag.help} | {', '.join(f'`{name}`' for name in flag.settings)} | {cells} |")
    reasons: dict[str, list[str]] = {}
    for flag in FLAGS:
        reasons.setdefault(flag.why_not, []).append(f"`{flag.word}`")
    table += ["", *(f"- {', '.join(names)}: {why.rstrip('.')}." for why, names in reasons.items() if why)]
    assert holds(DOCS / "reference/graph-kernel-flags.md", "flags", "\n".join(table) + "\n", update)
    passes = ["| pass of CANN | here |", "|---|---|"]
    passes += [
        f"| `{name}` | {', '.join(f'`{twin.removeprefix(PATTERN)}`' for twin in twins)} |" for name, twins in TWINS.items()
    ]
    passes += [f"| `{name}` | {why} |" for name, why in WITHOUT_A_TWIN.items()]
    assert holds(DOCS / "reference/graph-kernel-flags.md", "passes", "\n".join(passes) + "\n", update)


def rule_text(rule: PrecisionRule) -> str:
    """What the table shows of a rule: the dtype that each dtype computes in, and the dtype of the result where that differs."""
    if rule.widest:
        return "widest"
    computed = {dtype: rule.computes_in(dtype) for dtype in DTYPES}
    if len(set(computed.values())) == 1:
        return computed["float32"] + f", inputs rounded to {rule.through}" * bool(rule.through)
    cells = []
    for dtype, compute in computed.items():
        if compute != dtype:
            cells.append(f"{dtype} in {compute}" + (f", returns {rule.gives(dtype)}" if rule.gives(dtype) != compute else ""))
    return "; ".join(cells) or "as given"


def test_the_precision_modes_shown_are_those_that_are_applied(update: bool) -> None:
    table = ["| `precision_mode` | `_v2` | " + " | ".join(CLASSES) + " |", "|---" * (2 + len(CLASSES)) + "|"]
    for mode, by_class in MODES.items():
        v2 = ", ".join(f"`{name}`" for name, same in V2.items() if same == mode)
        cells = " | ".join(rule_text(by_class.get(kind, LEAVE)) for kind in CLASSES)
        table.append(f"| `{mode}` | {v2} | {cells} |")
    assert holds(DOCS / "how-to/precision.md", "precision", "\n".join(table) + "\n", update)


def written_by() -> dict[str, list[str]]:
    """The tables that a script of bench/ makes from stored results → its command."""
    found = {}
    for page in PAGES:
        for name, command in re.findall(
            r"^<!-- ([\w-]+): python (bench/.*) -->$", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            found[name] = shlex.split(command)
    return {name: words for name, words in found.items() if len(words) > 1}


@pytest.mark.parametrize("name", written_by())
def test_the_tables_of_figures_are_those_of_the_stored_results(
    name: str, bench: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, *words = written_by()[name]
    monkeypatch.chdir(ROOT)
    shutil.copy(README, tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    monkeypatch.setattr(bench("summary"), "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *words])
    bench(Path(script).stem).main()
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT)).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_the_pictures_are_those_that_are_drawn(bench: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do about one that is not: `python docs/pictures.py`."""
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.delitem(sys.modules, "pictures", raising=False)
    for name, draw in bench("pictures").PICTURES.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == draw(), name


@pytest.mark.full  # it builds the native core anew
def test_the_diffs_shown_apply_and_do_what_the_page_says(tmp_path: Path, passes: Callable[..., str]) -> None:
    """Each in turn, to a copy of the tree in which the page's checks (blocks marked py) run."""
    if not shutil.which("git"):
        pytest.skip("git is missing")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("msctx", "kernels", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    diffs, checks = ([text for (text,) in (block.values for block in blocks(kind))] for kind in ("diff", "py"))
    assert len(diffs) >= 3
    assert len(checks) >= 2
    for diff in diffs:
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    here = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(tmp_path)!r})"
    passes("\n".join([here, f"import msctx; assert msctx.__file__.startswith({str(tmp_path)!r})", *checks]), timeout=600)


def test_the_paths_named_exist() -> None:
    pattern = r"`((?:msctx|kernels|configs|bench|tests|docs)/[\w/.*-]+)`"
    named = {(page.name, path) for page in PAGES for path in re.findall(pattern, page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert {(page, path) for page, path in named if not list(ROOT.glob(path))} == set()
    linked = re.findall(r"\]\((docs[^)#]*)", README.read_text(encoding="utf-8"))  # Sphinx checks the links of other pages
    assert [path for path in linked if not (ROOT / path).exists()] == []


def test_the_readme_stays_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
