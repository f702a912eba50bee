"""`msctx migrate`: what is found in MindSpore scripts, what is left out and why, and that nothing of a script is ever run."""

from __future__ import annotations

import ast
import json
import os
import random
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import msctx
from msctx import migrate
from msctx.errors import FileError, MsctxWarning, OptionError
from msctx.migrate.calls import functions
from msctx.migrate.migration import canonical
from msctx.options import DEVICES, OPTIONS, UNSET, Layer, Option, Settings, device_of, find, make_layer
from msctx.run.config import read as read_yaml

DATA = Path(__file__).parent / "data" / "migrate"
SCRIPTS = sorted(DATA.glob("*.py"))
Write = Callable[..., str]
Of = Callable[..., migrate.Migration]


@pytest.fixture
def write(tmp_path) -> Write:
    """A script with this text; gives its path."""

    def write(text: str | bytes, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return str(path)

    return write


@pytest.fixture
def of(write) -> Of:
    """What a script with this text comes to; it imports mindspore as ms on line 1."""
    return lambda text: migrate.read(write("import mindspore as ms\n" + textwrap.dedent(text)))


def meaning(layer: Layer) -> dict[str, dict[str, Any]]:
    """Device → option → value in force: the same for layers that mean the same, however they spell it."""
    found = Settings([layer])
    return {device: {name: found.on(device)[name][0].value for name in sorted(found.on(device))} for device in DEVICES}


def told(migration: migrate.Migration) -> list[str]:
    """The problems, each as its line and text."""
    return [f"{p.mark.line if p.mark else '-'} {p.path}: {p.text}" for p in migration.problems]


def check_outputs(migration: migrate.Migration, folder: Path) -> None:
    """What is written down must mean what was read: as YAML for msctx and for others, as a with-block, as a dictionary."""
    expected = meaning(migration.layer)
    file = folder / "migrated.yaml"
    file.write_text(migrate.as_yaml(migration), encoding="utf-8", errors="surrogatepass")
    levels = read_yaml(str(file)).levels
    assert meaning(levels.get("yaml", Layer())) == expected
    by_others = (yaml.safe_load(file.read_text(encoding="utf-8")) or {})["context"] or {}
    assert meaning(make_layer(by_others, "YAML 1.1")) == expected
    block = migrate.as_with_block(migration)
    made: list[dict[str, Any]] = []

    class Recorder:
        def context(self, **options: Any) -> Any:
            made.append(options)
            return warnings.catch_warnings()

    exec(compile(block.replace("import msctx\n", ""), "block", "exec"), {"msctx": Recorder()})
    assert meaning(make_layer(made[0], "with-block")) == expected
    assert meaning(make_layer(migration.options, "options")) == expected


# --- whole scripts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_written_means_what_was_read(script, tmp_path):
    check_outputs(migrate.read(str(script)), tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("device", [None, *DEVICES])
def test_a_status_on_each_device_and_data_for_programs(script, device):
    migration = migrate.read(str(script))
    plan = migrate.planned(migration, device)
    data = json.loads(json.dumps(migrate.as_dict(migration, plan)))
    assert {row["option"] for row in data["plan"]["options"]} <= {s.option.name for s in migration.layer.settings.values()}
    assert all(row["origin"].startswith(f"{script}:") for row in data["plan"]["options"])
    assert len(data["calls"]) == len(migration.calls)
    assert [p["where"] for p in data["problems"]] == [str(p.mark) for p in migration.problems]


RESNET = """\
# What resnet.py sets, found by `msctx migrate`.
context:
  seed: 1  # resnet.py:17
  mode: GRAPH_MODE  # resnet.py:27
  # device_target: args.device_target  # resnet.py:28: known only when the script runs
  max_device_memory: "30GB"  # resnet.py:30
  enable_graph_kernel: true  # resnet.py:33, if args.device_target == "GPU"
  # device_id: device_id  # resnet.py:36, if args.run_distribute: known only when the script runs: device_id = int(os.getenv("DEVICE_ID"))
  # enable_auto_mixed_precision: True  # resnet.py:36, if args.run_distribute: unknown option
  # context.set_auto_parallel_context(…)  # resnet.py:37, if args.run_distribute: no counterpart in msctx: how work is spread over devices is said to torch.distributed and its wrappers (DDP, FSDP)
  # enable_dump: True  # resnet.py:45: deprecated and without effect; instead: session.enable_dump with dump_path
  save_graphs: 2  # resnet.py:45
  deterministic: "ON"  # resnet.py:49
"""  # noqa: E501


def test_a_script_of_the_model_zoo():
    migration = migrate.read(str(DATA / "resnet.py"))
    assert migrate.as_yaml(migration) == RESNET
    assert [(call.line, call.column, call.function) for call in migration.calls] == [
        (17, 1, "set_seed"),
        (26, 5, "context.set_context"),
        (33, 9, "context.set_context"),
        (36, 9, "context.set_context"),
        (37, 9, "context.set_auto_parallel_context"),
        (45, 5, "context.set_context"),
        (49, 5, "context.set_context"),
    ]
    notes = {call.line: call.notes for call in migration.calls}
    assert notes[33] == (
        'inside `def set_parameter()`, line 25, `if args.device_target == "GPU"`, line 32: taken over unconditionally',
    )
    assert "save_graphs: 2 replaces False of line 29" in notes[45]
    assert notes[49] == ()  # __name__ == "__main__" needs no word
    assert [str(p.mark).rpartition("/")[2] for p in migration.problems] == [
        "resnet.py:28:23",
        "resnet.py:36:39",
        "resnet.py:36:50",
        "resnet.py:37:9",
        "resnet.py:45:37",
    ]


def test_the_newer_vocabulary():
    migration = migrate.read(str(DATA / "newer.py"))
    assert migration.options == {
        "mode": "PYNATIVE_MODE",
        "device_target": "GPU",
        "device_id": 1,
        "deterministic": True,
        "max_call_depth": 2000,
        "seed": 42,
        "gpu_config": {"conv_allow_tf32": False, "conv_fprop_algo": "winograd"},
        "ascend_config": {"precision_mode": "allow_mix_precision_bf16"},
        "device_context": {"cpu": {"op_tuning": {"threads_num": 4}}},
        "max_device_memory": "4GB",
        "memory_optimize_level": "O1",
        "inter_op_parallel_num": 4,
        "pynative_synchronize": True,
    }
    paths = [p.path for p in migration.problems]
    assert paths == [
        "jit_config",
        "device_context.gpu.op_tuning.conv_dgrad_algo",
        "runtime.set_memory.init_size",
        "runtime.set_cpu_affinity",
    ]
    assert migration.calls[-1].notes == (
        "max_device_memory: '4GB' of line 19 stays in force, since MindSpore's newer functions win over set_context",
        "gpu_config.conv_fprop_algo: 'winograd' of line 16 stays in force, since MindSpore's newer functions win over set_context",
    )


def test_every_way_to_reach_mindspore():
    migration = migrate.read(str(DATA / "aliases.py"))
    assert migration.options == {
        "mode": 0,
        "save_graphs": 1,
        "check_bprop": True,
        "precompile_only": True,
        "grad_for_scalar": True,
        "device_id": 3,
        "debug_level": "DEBUG",
        "support_binary": True,
        "op_timeout": 60,
        "jit_syntax_level": "STRICT",
        "memory_optimize_level": "O1",
        "inter_op_parallel_num": 2,
        "seed": 7,
        "device_target": "CPU",
        "max_call_depth": 1000,
        "runtime_num_threads": 4,
    }
    (problem,) = migration.problems
    assert problem.path == "Net({}).context.set_context"
    assert "known only when the script runs" in problem.text


def test_values_are_known_or_left_out():
    migration = migrate.read(str(DATA / "values.py"))
    assert migration.options == {
        "mode": "GRAPH_MODE",
        "device_target": "GPU",
        "save_graphs": 0,
        "save_graphs_path": "./graphs",
        "gpu_config": {"conv_allow_tf32": False, "conv_fprop_algo": "winograd"},
        "max_device_memory": "4GB",
        "compile_cache_path": "./cache/graphs",
        "enable_compile_cache": True,
        "op_timeout": 30,
        "max_call_depth": 2000,
        "graph_kernel_flags": "--opt_level=2",
        "ascend_config": {"ge_options": {"global": {"ge.opSelectImplmode": "high_precision", "a b": 'say "hi": #1'}}},
        "precompile_only": True,
    }
    reasons = {p.path: p.text.partition("known only when the script runs")[2] for p in migration.problems}
    assert reasons == {
        "gpu_config.conv_dgrad_algo": "",
        "**CHANGED": ": CHANGED may be changed on line 15",
        "device_id": ": twice is assigned 2 times (lines 17, 18)",
        "debug_level": "",
        "**vars(os)": "",
        "ms.set_context": "",
        "runtime_num_threads": ": threads is an argument",
        "check_bprop": ": check is an argument",
    }


def test_calls_that_depend_on_something():
    migration = migrate.read(str(DATA / "branches.py"))
    assert migration.options == {
        "device_target": "Ascend",
        "mode": "PYNATIVE_MODE",
        "runtime_num_threads": 2,
        "max_call_depth": 500,
        "save_graphs": 1,
        "op_timeout": 1,
        "deterministic": "ON",
        "check_bprop": True,
    }
    notes = [note for call in migration.calls for note in call.notes]
    assert "device_target: 'CPU' replaces 'GPU' of line 9" in notes
    assert "device_target: 'Ascend' replaces 'CPU' of line 11" in notes
    assert "max_device_memory: '2GB' of line 24 is left out too, since it is replaced here" in notes
    inside = [note.partition(":")[0] for note in notes if note.startswith("inside")]
    assert inside == [
        "inside `if sys.argv[1",  # the rest is cut off by the colon of the slice
        "inside `else of if sys.argv[1",
        "inside `else of if sys.argv[1",
        "inside `for threads in (1, 2)`, line 15",
        "inside `except ValueError`, line 17",
        "inside `lambda`, line 22",
        "inside `if sys.argv`, line 23",
    ]


def test_what_msctx_refuses_is_told_with_its_place():
    migration = migrate.read(str(DATA / "refused.py"))
    assert migration.options == {"precision_mode_v2": "fp16"}
    text = "\n".join(map(str, migration.problems))
    for expected in (
        "allowed: 0 (also GRAPH_MODE), 1 (also PYNATIVE_MODE)",
        "did you mean 'winograd'?",
        "did you mean conv_allow_tf32?",
        "jit_config: MindSpore 2.3.1 has it, and msctx has no such option",
        "ascend_config: needs a dictionary of options",
        "env_config_path: './there/is/no.json' cannot be read: No such file or directory",
        "enable_dump: deprecated and without effect; instead: session.enable_dump with dump_path",
        "save_dump_path: deprecated and without effect; instead: dump_path",
        "ge.x: 1 is not text",
        "they exclude each other",
        "these are not the arguments of set_device: it takes device_target, device_id",
        "these are not the arguments of set_seed: it takes seed",
        "these are not the arguments of launch_blocking: it takes none",
        "these are not the arguments of dispatch_threads_num: it takes one value",
        "ms.runtime.set_kernel_launch_group: no counterpart in msctx",
        "ms.set_ps_context: no counterpart in msctx: torch has no parameter servers of that kind",
    ):
        assert expected in text
    assert len(migration.problems) == 22
    assert all(p.mark is not None for p in migration.problems)
    assert "runtime_num_threads: 4 of line 10 is left out too, since it is replaced here" in migration.calls[5].notes
    left_out = [line for line in migrate.as_yaml(migration).splitlines() if line.startswith("  # ")]
    assert len(left_out) == 22  # runtime_num_threads once


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_nothing_of_a_script_is_run(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment, modules = dict(os.environ), set(sys.modules)
    migration = migrate.read(str(script))
    migrate.as_yaml(migration), migrate.as_with_block(migration)
    assert [*tmp_path.iterdir()] == []
    assert dict(os.environ) == environment
    assert not {name for name in set(sys.modules) - modules if name.partition(".")[0] in ("mindspore", "src", "zmq")}


@pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning", "ignore:Anomaly Detection has been enabled")
def test_the_with_block_sets_what_it_says(of):
    migration = of("""\
        ms.set_context(deterministic="ON", runtime_num_threads=2, device_target="CPU")
        ms.runtime.launch_blocking()
        ms.set_seed(3)
    """)
    threads = torch.get_num_threads()
    block = migrate.as_with_block(migration).replace("    ...", "    seen.append(look(ctx))  #")
    seen: list[Any] = []

    def look(ctx: Any) -> Any:
        return torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), ctx.device, torch.initial_seed()

    exec(compile(block, "block", "exec"), {"seen": seen, "look": look})
    assert seen == [(True, 2, torch.device("cpu"), 3)]
    assert torch.get_num_threads() == threads
    plan = migrate.planned(migration, "cpu")
    assert {row.option: row.status for row in plan.rows}["deterministic"] == "honoured"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MsctxWarning)
        with msctx.context(**migration.options) as ctx:
            assert ctx.get("seed") == 3


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", functions())
def test_every_newer_function_means_the_same_as_its_name(of, function):
    option = find(function)
    if option is None or function in ("runtime.launch_blocking", "set_recursion_limit", "set_deterministic"):
        pytest.skip("several options, or none: tested above")
    if option.content:
        pytest.skip("its value is a file")
    migration = of(f"ms.{function}({option.example!r})\nms.{function}(value={option.example!r})")
    assert migration.problems == ()
    assert meaning(migration.layer) == meaning(make_layer({function: option.example}, "here"))
    assert migration.calls[1].notes == ()


@pytest.mark.parametrize("name", sorted({s for o in OPTIONS.values() for s in o.spellings}))
def test_a_canonical_spelling_speaks_of_the_same_devices(name):
    option, spelling = find(name), canonical(name)
    assert find(spelling) is option
    assert device_of(spelling) == device_of(name) or option.devices == (device_of(name),)
    assert canonical(spelling) == spelling


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DEPTH = 5\nms.set_context(max_call_depth=DEPTH)", 5),
        ("A = B = 5\nms.set_context(max_call_depth=B)", 5),
        ("A, B = 4, 5\nms.set_context(max_call_depth=B)", 5),
        ("ms.set_context(max_call_depth=(n := 5))", None),
        ("ms.set_context(max_call_depth=int('5'))", None),
        ("A = 5\ndef f():\n    global A\n    A = 6\nms.set_context(max_call_depth=A)", None),
        ("A = 5\ndef f():\n    A = 6\nms.set_context(max_call_depth=A)", 5),
        ("A = 5\ndel A\nms.set_context(max_call_depth=A)", None),
        ("A = 5\nA += 1\nms.set_context(max_call_depth=A)", None),
        ("A = 5\nfrom settings import *\nms.set_context(max_call_depth=A)", None),
        ("from settings import *\nA = 5\nms.set_context(max_call_depth=A)", 5),
        ("A = A\nms.set_context(max_call_depth=A)", None),
        ("A = B\nB = A\nms.set_context(max_call_depth=A)", None),
        ("class C:\n    A = 5\n    ms.set_context(max_call_depth=A)", 5),
        ("A = 4\nclass C:\n    A = 5\n    def f(self):\n        ms.set_context(max_call_depth=A)", 4),
        ("A = 5\n[ms.set_context(max_call_depth=A) for A in range(3)]", None),
        ("A = 5\nf = lambda A=3: ms.set_context(max_call_depth=A)", None),
        ("try:\n    A = 5\nexcept Exception as A:\n    pass\nms.set_context(max_call_depth=A)", None),
        ("match 1:\n    case A:\n        pass\nms.set_context(max_call_depth=A)", None),
        ("D = {'A': 5}\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nms.set_context(max_call_depth=D['B'])", None),
        ("D = {'A': 5}\nD.update(A=6)\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nprepare(D)\nms.set_context(max_call_depth=D['A'])", None),
        ("D = E = {'A': 5}\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nE = D\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': [5]}\nE = D['A']\nms.set_context(max_call_depth=D['A'][0])", 5),
        ("D = {'A': [5]}\nE = D['A']\nE[0] = 6\nms.set_context(max_call_depth=D['A'][0])", None),
        ("D = {'A': [5]}\nfor e in D.values(): e[0] = 6\nms.set_context(max_call_depth=D['A'][0])", None),
        ("D = {'A': 5}\nfor e in [D]: e['A'] = 6\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nfor k, v in D.items(): pass\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': [5, 6]}\nms.set_context(max_call_depth=D['A'][0] * 2)", 10),
        ("D = {'A': 5}\nprint(D)\nx = D['A'] + 1\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nE = {'B': D}\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nE = {'B': D}\nms.set_context(max_call_depth=E['B']['A'])", 5),
        ("D = {'A': 5}\nE = {'B': D}\nE['B']['A'] = 6\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nE = {'B': D}\nF = {**E}\nf(F)\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nE = dict(B=D)\nf(E)\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nE = {**D}\nF = dict(D)\nG = f(**D)\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': [5]}\nG = f(**D)\nms.set_context(max_call_depth=D['A'][0])", None),
        ("D = {'A': 5}\nf(*D, [D])\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nf(D['A'])\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nfor D['A'] in range(3): pass\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\ndel D['A']\nms.set_context(max_call_depth=D['A'])", None),
        ("D = dict(max_call_depth=5)\nms.set_context(**D)", 5),
        ("ms.set_context(**{**{'max_call_depth': 4}, 'max_call_depth': 5})", 5),
        ("ms.set_context(max_call_depth=-5)", None),
        ("ms.set_context(max_call_depth=2 + 3)", 5),
        ("ms.set_context(max_call_depth=2 ** 3)", None),
        ("m = ms.GRAPH_MODE\nms.set_context(max_call_depth=5, mode=m)", 5),
    ],
)
def test_what_is_known_of_a_name(of, text, expected):
    assert of(text).options.get("max_call_depth") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ms.PYNATIVE_MODE", "PYNATIVE_MODE"),
        ("ms.context.PYNATIVE_MODE", "PYNATIVE_MODE"),
        ("ms.COMPATIBLE", 1),  # the number is what mode knows
        ("M", None),
        ("elsewhere.GRAPH_MODE", None),
        ("GRAPH_MODE", None),
    ],
)
def test_constants(of, value, expected):
    assert of(f"M = ms.GRAPH_MODE\nM = ms.PYNATIVE_MODE\nms.set_context(mode={value})").options.get("mode") == expected


def test_later_calls_win_key_by_key(of):
    migration = of("""\
        ms.set_context(gpu_config={"conv_allow_tf32": True, "matmul_allow_tf32": True}, mode=0)
        ms.set_context(mode=1, gpu_config={"conv_allow_tf32": False})
    """)
    assert migration.options == {"gpu_config": {"matmul_allow_tf32": True, "conv_allow_tf32": False}, "mode": 1}
    assert migration.calls[1].notes == (
        "mode: 1 replaces 0 of line 2",
        "gpu_config.conv_allow_tf32: False replaces True of line 2",
    )


def test_an_option_beside_a_part_of_it(of, tmp_path):
    migration = of("""ms.set_context(graph_kernel_flags="--opt_level=2", **{"graph_kernel_flags.opt_level": 3})""")
    assert migration.options == {"graph_kernel_flags": "--opt_level=2", "graph_kernel_flags.opt_level": 3}
    check_outputs(migration, tmp_path)


# --- files ------------------------------------------------------------------------------------------------------------


def problem_of(path: str) -> str:
    with pytest.raises(FileError) as error:
        migrate.read(path)
    (problem,) = error.value.problems
    return str(problem)


def test_a_syntax_error_has_its_place(write):
    text = problem_of(write("import mindspore as ms\nms.set_context(mode=)\n"))
    first, line, caret = text.splitlines()
    assert "train.py:2:" in first
    assert "this is not Python" in first
    assert line == "    2 | ms.set_context(mode=)"
    assert "^" in caret


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"x = '\xff'\n\n", "save it as UTF-8"),
        (b"# a\n# b\n# c\nx = '\xff'\n", "not utf-8 text (byte 17, line 4)"),
        (b"# coding: no-such\n", "cannot be decoded"),
        (b"# coding: rot13\n", "cannot be decoded"),
        ("ms = 1".encode("utf-16"), "cannot be decoded"),
        (b"x = 1\0\n", "null byte"),
        (b"print 'hello'\n", "this is not Python"),
        (b"x = " + b"(" * 500 + b")" * 500, "Python"),
        (b"x = " + b"-" * 200_000 + b"1", "nested too deeply"),
        (b"x = " + b"9" * 5000, "this is not Python"),
        (b"def f(:\n" + b"#" * 10_000, "this is not Python"),
    ],
)
def test_files_that_cannot_be_read(write, content, expected):
    assert expected.lower() in problem_of(write(content)).lower()


def test_files_that_are_not_there(tmp_path):
    assert "No such file" in problem_of(str(tmp_path / "no.py"))
    assert "directory" in problem_of(str(tmp_path))
    assert "cannot be read" in problem_of("a\0b")


CALL = "import mindspore as ms\nms.set_context(save_graphs_path='grün', mode=7)\n"


@pytest.mark.parametrize(
    "content",
    [
        CALL.encode(),
        CALL.encode("utf-8-sig"),
        b"# -*- coding: latin-1 -*-\n" + CALL.encode("latin-1"),
        CALL.replace("\n", "\r\n").encode(),
        CALL.replace("\n", "\r").encode(),
        ("\x0c\n" + CALL.replace("\n", "  # \x0c \x85 \u2028\n")).encode(),
    ],
)
def test_encodings_and_line_ends(write, content, tmp_path):
    migration = migrate.read(write(content))
    assert migration.options == {"save_graphs_path": "grün"}
    (problem,) = migration.problems
    assert problem.mark.text[problem.mark.column - 1] == "7"
    check_outputs(migration, tmp_path)


def test_a_file_without_calls(write):
    (problem,) = migrate.read(write("import torch\n")).problems
    assert problem.text == "no call that sets MindSpore's context was found; this file does not import it"
    migration = migrate.read(write("import mindspore\nx = mindspore.get_context('mode')\n"))
    assert told(migration) == ["- : no call that sets MindSpore's context was found"]
    assert migrate.as_yaml(migration).endswith("context: {}\n")
    assert migrate.read(write("")).calls == ()
    compile(migrate.as_with_block(migration), "block", "exec")


@pytest.mark.parametrize(
    "text",
    [
        "x = " + " + ".join(["'a'"] * 900) + "\nms.set_context(mode=0)",
        "if a: pass\n" + "elif a: pass\n" * 400 + "else: ms.set_context(mode=0)",
        "".join(f"a{i} = a{i + 1}\n" for i in range(3000)) + "a3000 = 1\nms.set_context(device_id=a0, mode=0)",
        "".join(f"a{i} = [a{i + 1}, a{i + 1}]\n" for i in range(60)) + "ms.set_context(device_id=a0, mode=0)",
        "".join(f"a{i} = {{**a{i + 1}, **a{i + 1}}}\n" for i in range(60)) + "ms.set_context(mode=0, **a0)",
        "".join(f"a{i} = a{i + 1}.x\na{i} = a{i + 1}.y\n" for i in range(60)) + "a0.set_context()\nms.set_context(mode=0)",
        "".join(f"a{i + 1} = [a{i}, a{i}]\nb{i} = [a{i}]\n" for i in range(60))
        + "a0 = []\nms.set_context(mode=0, device_id=a0)",
        "ms.set_context(mode=0, device_id=" + "[" * 90 + "]" * 90 + ")",
        "\n".join(["ms.set_context(mode=0)"] * 2000),
    ],
)
def test_large_scripts_are_read_in_time(of, text):
    assert of(text).options == {"mode": 0}


def test_text_that_would_break_a_comment(write, tmp_path):
    script = write(
        'import mindspore as ms\nms.set_context(device_id=f(\n    """a\u2028b\nc""",\n    "\x1b[31m"), '
        'save_graphs_path="\\x00\\u2028\\ud800")',
        name="a\nb #1.py",
    )
    migration = migrate.read(script)
    text = migrate.as_yaml(migration)
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert len(text.splitlines()) == 4
    check_outputs(migration, tmp_path)


def test_warnings_about_the_script_are_not_ours(write):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        migrate.read(write("x = '\\d'\nassert (1, 2)\n1 is 1\n"))


# --- any options ------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
BY_KIND = {
    "BoolKind": st.booleans(),
    "OnOffKind": st.sampled_from(["ON", "OFF", True, False, 0, 1]),
    "FlagKind": st.sampled_from([0, 1, True, False, "ON"]),
    "TextFlagKind": st.sampled_from(["0", "1", 0, True]),
    "IntKind": st.integers(-2, 5000),
    "MemoryKind": st.sampled_from(["1GB", "4GB", "2.5GiB", 2**31, "nothing"]),
    "TextKind": st.one_of(TEXT, st.sampled_from(["on", "No", "null", "1e3", "0x10", "2001-01-01", "~", "- a", "a: b", "#"])),
}


def values(option: Option) -> st.SearchStrategy[Any]:
    examples = st.just(option.example) if option.example is not UNSET else st.nothing()
    if option.choices:
        return st.one_of(examples, st.sampled_from([*option.choices, *option.kind.aliases]))
    return st.one_of(examples, BY_KIND.get(type(option.kind).__name__, st.nothing()))


# A relative path of a file that msctx writes is meant from the folder it stands in: the same text is not the same value.
SPELLINGS = [s for o in OPTIONS.values() if not o.content and not o.replaced_by and not o.is_output for s in o.spellings]
SPELLINGS = [s for s in SPELLINGS if not s.startswith(("device_context", "runtime", "set_"))]
CHOSEN = st.lists(st.sampled_from(SPELLINGS), max_size=6, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values(find(name)) for name in names})
)


def rendered(options: dict[str, Any], seed: int) -> str:
    """A script that sets options: in several calls, by name, in groups, and from dictionaries."""
    choose = random.Random(seed)
    lines = ["import mindspore as ms"]
    for i, (spelling, value) in enumerate(options.items()):
        *groups, last = spelling.split(".")
        text = repr(value)
        if choose.random() < 0.3:
            lines.append(f"VALUE_{i} = {text}")
            text = f"VALUE_{i}"
        if not groups:
            lines.append(f"ms.set_context({last}={text})")
            continue
        nested = f"{{{last!r}: {text}}}"
        for group in reversed(groups[1:]):
            nested = f"{{{group!r}: {nested}}}"
        if choose.random() < 0.3:
            lines.append(f"GROUP_{i} = dict({groups[0]}={nested})")
            lines.append(f"ms.set_context(**GROUP_{i})")
        else:
            lines.append(f"ms.set_context({groups[0]}={nested})")
    return "\n".join(lines)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(options=CHOSEN, seed=st.integers(0, 100))
def test_any_options_mean_the_same_as_in_python(tmp_path, options, seed):
    try:
        expected = meaning(make_layer(options, "here"))
    except OptionError:
        expected = None
    script = tmp_path / "train.py"
    script.write_text(rendered(options, seed), encoding="utf-8")
    migration = migrate.read(str(script))
    check_outputs(migration, tmp_path)
    if expected is None:
        assume(len({canonical(name) for name in options}) == len(options))
        assert migration.problems
    elif options:
        assert migration.problems == ()
        assert meaning(migration.layer) == expected


WORDS = ("set_context", "import mindspore as ms\n", "ms.set_context(", "device_id", "lambda ", "if ", "f'{", "\\")


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    source=st.lists(st.sampled_from([*WORDS, *"ms.=()[]{},:'\"#*+1a\n "]), max_size=60).map("".join),
)
def test_any_text_is_read_or_refused_with_a_message(tmp_path, source):
    script = tmp_path / "train.py"
    script.write_bytes(source.encode())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError):
        assert "train.py" in problem_of(str(script))
    else:
        check_outputs(migrate.read(str(script)), tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('getattr(ms, "set_context")(mode=0)', "is looked up by its name"),
        ("functools.partial(ms.set_context, mode=0)()", "is not called here but handed on"),
        ("[ms.set_context][0](mode=1)", "is not called here but handed on"),
        ("ms.set_context.__wrapped__(mode=0)", "is not called here but handed on"),
        ("apply(ms.set_device)", "is not called here but handed on"),
    ],
)
def test_what_is_called_in_a_roundabout_way_is_told(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "x.py"
    file.write_text(f"import functools\nimport mindspore as ms\n\n{line}\n")
    found = migrate.read(str(file))
    assert found.options == {}
    (problem,) = [p for p in found.problems if p.mark]
    assert said in problem.text
    assert problem.mark is not None
    assert problem.mark.line == 4


def test_an_alias_is_followed_and_not_told(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("import mindspore as ms\n\nput = ms.set_context\nput(mode=0)\n")
    found = migrate.read(str(file))
    assert found.problems == ()
    assert found.options == {"mode": 0}
