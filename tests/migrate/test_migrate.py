"""`msctx migrate`: what is found in whole scripts, what is left out and why, and that nothing of a script is ever run."""

import json
import os
import sys
import warnings
from typing import Any

import pytest
import torch
from migrations import DATA, SCRIPTS, check_outputs

import msctx
from msctx import migrate
from msctx.errors import MsctxWarning
from msctx.options import DEVICES


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_written_means_what_was_read_on_each_device_and_nothing_is_run(script, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    environment, modules = dict(os.environ), set(sys.modules)
    migration = migrate.read(str(script))
    check_outputs(migration, tmp_path)
    for device in (None, *DEVICES):
        data = json.loads(json.dumps(migrate.as_dict(migration, migrate.planned(migration, device))))
        assert {row["option"] for row in data["plan"]["options"]} <= {s.option.name for s in migration.layer.settings.values()}
        assert all(row["origin"].startswith(f"{script}:") for row in data["plan"]["options"])
        assert len(data["calls"]) == len(migration.calls)
        assert [p["where"] for p in data["problems"]] == [str(p.mark) for p in migration.problems]
    assert [*(tmp_path / "empty").iterdir()] == []
    assert dict(os.environ) == environment
    assert not {name for name in set(sys.modules) - modules if name.partition(".")[0] in ("mindspore", "src", "zmq")}


def test_a_script_of_the_model_zoo():
    migration = migrate.read(str(DATA / "resnet.py"))
    assert migrate.as_yaml(migration) == (DATA / "resnet.yaml").read_text(encoding="utf-8")
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
        'inside `def set_parameter()`, line 25, `if args.device_target == "GPU"`, line 32: applied unconditionally',
    )
    assert notes[49] == ()  # __name__ == "__main__" needs no word
    assert [str(p.mark).rpartition("/")[2] for p in migration.problems] == [
        "resnet.py:28:23",
        "resnet.py:36:39",
        "resnet.py:36:78",
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
        "max_device_memory: that of line 19 stays in force, since MindSpore's newer functions win over set_context",
        "gpu_config.conv_fprop_algo: that of line 16 stays in force, since MindSpore's newer functions win over set_context",
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
    assert migration.problems == ()


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
    inside = [note.partition(":")[0] for note in notes if note.startswith("inside")]
    assert inside == [
        "inside `if sys.argv[1",  # the rest is cut off by the colon of the slice
        "inside `else of if sys.argv[1",
        "inside `else of if sys.argv[1",
        "inside `for threads in (1, 2)`, line 15",
        "inside `except ValueError`, line 17",
        "inside `while True`, line 19",
        "inside `later = lambda",
        'inside `ms.set_context(deterministic="ON") if sys.argv else None`, line 23',
    ]


def test_what_msctx_rejects_is_reported_with_its_place():
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
        "ge.x: 1 is not allowed",
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
    left_out = [line for line in migrate.as_yaml(migration).splitlines() if line.startswith("  # ")]
    assert len(left_out) == 22  # runtime_num_threads once


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


def test_settings_of_jit_and_of_the_inner_context_are_reported(write):
    path = write(
        "import mindspore as ms\n"
        "net.set_jit_config(ms.JitConfig(jit_level='O1'))\n"
        "@ms.jit(jit_level='O2')\n"
        "def f(x): return x\n"
        "@ms.jit\n"
        "def g(x): return x\n"
        "ms.context._context().set_param('mode', 1)\n"
        "print(ms.context._context().get_param('mode'))\n"
    )
    found = [(p.mark.line, p.text) for p in migrate.read(str(path)).problems]
    assert [line for line, _ in found] == [2, 3, 7]
    for (_, text), part in zip(
        found, ("enable_graph_kernel", "msctx.mindspore.jit takes", "arguments of set_context"), strict=True
    ):
        assert part in text
