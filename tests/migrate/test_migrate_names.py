"""`msctx migrate`: what is known of names, constants and functions, and what is called in a roundabout way."""

import pytest
from migrations import check_outputs, meaning

from msctx import migrate
from msctx.migrate.calls import PARAMETERS
from msctx.migrate.migration import canonical
from msctx.options import OPTIONS, device_of, find, make_layer

WRITTEN_OUT = ("runtime.launch_blocking", "set_recursion_limit", "set_deterministic")
"""Newer functions whose calls differ from the rest; tests of whole scripts have them."""


def test_every_newer_function_means_the_same_as_its_name(of):
    dotted = {name for option in OPTIONS.values() for name in option.also if name.startswith(("runtime.", "device_context."))}
    for function in sorted(name for name in dotted if name.rpartition(".")[0] not in PARAMETERS):
        option = find(function)
        if option is None or option.content or function in WRITTEN_OUT:
            continue
        migration = of(f"ms.{function}({option.example!r})\nms.{function}(value={option.example!r})")
        assert migration.problems == (), function
        assert meaning(migration.layer) == meaning(make_layer({function: option.example}, "here")), function


def test_a_canonical_spelling_means_the_same_devices():
    for option in OPTIONS.values():
        for name in option.spellings:
            spelling = canonical(name)
            assert find(spelling) is option, name
            assert device_of(spelling) == device_of(name) or option.devices == (device_of(name),), name
            assert canonical(spelling) == spelling


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DEPTH = 5\nms.set_context(max_call_depth=DEPTH)", 5),
        ("A, B = 4, 5\nms.set_context(max_call_depth=B)", 5),
        ("ms.set_context(max_call_depth=(n := 5))", None),
        ("ms.set_context(max_call_depth=int('5'))", None),
        ("A = 5\ndef f():\n    global A\n    A = 6\nms.set_context(max_call_depth=A)", None),
        ("A = 5\ndef f():\n    A = 6\nms.set_context(max_call_depth=A)", 5),
        ("A = 5\nA += 1\nms.set_context(max_call_depth=A)", None),
        ("A = 5\nfrom settings import *\nms.set_context(max_call_depth=A)", None),
        ("from settings import *\nA = 5\nms.set_context(max_call_depth=A)", 5),
        ("A = B\nB = A\nms.set_context(max_call_depth=A)", None),
        ("class C:\n    A = 5\n    ms.set_context(max_call_depth=A)", 5),
        ("A = 4\nclass C:\n    A = 5\n    def f(self):\n        ms.set_context(max_call_depth=A)", None),
        ("A = 5\n[ms.set_context(max_call_depth=A) for A in range(3)]", None),
        ("A = 5\nf = lambda A=3: ms.set_context(max_call_depth=A)", None),
        ("try:\n    A = 5\nexcept Exception as A:\n    pass\nms.set_context(max_call_depth=A)", None),
        ("match 1:\n    case A:\n        pass\nms.set_context(max_call_depth=A)", None),
        ("D = {'A': 5}\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nms.set_context(max_call_depth=D['B'])", None),
        ("D = {'A': 5}\nD.update(A=6)\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nprepare(D)\nms.set_context(max_call_depth=D['A'])", None),
        ("D = E = {'A': 5}\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': [5]}\nE = D['A']\nE[0] = 6\nms.set_context(max_call_depth=D['A'][0])", None),
        ("D = {'A': [5]}\nfor e in D.values(): e[0] = 6\nms.set_context(max_call_depth=D['A'][0])", None),
        ("D = {'A': 5}\nfor k, v in D.items(): pass\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': [5, 6]}\nms.set_context(max_call_depth=D['A'][0] * 2)", 10),
        ("D = {'A': 5}\nprint(D)\nx = D['A'] + 1\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nE = {'B': D}\nE['B']['A'] = 6\nms.set_context(max_call_depth=D['A'])", None),
        ("D = {'A': 5}\nG = f(**D)\nms.set_context(max_call_depth=D['A'])", 5),
        ("D = {'A': 5}\nf(D['A'])\nms.set_context(max_call_depth=D['A'])", 5),
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


def test_constants(of):
    values = {
        "ms.PYNATIVE_MODE": "PYNATIVE_MODE",
        "ms.context.PYNATIVE_MODE": "PYNATIVE_MODE",
        "ms.COMPATIBLE": 1,  # the number is what mode knows
        "M": None,
        "elsewhere.GRAPH_MODE": None,
        "GRAPH_MODE": None,
    }
    for value, expected in values.items():
        migration = of(f"M = ms.GRAPH_MODE\nM = ms.PYNATIVE_MODE\nms.set_context(mode={value})")
        assert migration.options.get("mode") == expected, value


def test_later_calls_win_key_by_key(of):
    migration = of("""\
        ms.set_context(gpu_config={"conv_allow_tf32": True, "matmul_allow_tf32": True}, mode=0)
        ms.set_context(mode=1, gpu_config={"conv_allow_tf32": False})
    """)
    assert migration.options == {"gpu_config": {"matmul_allow_tf32": True, "conv_allow_tf32": False}, "mode": 1}


def test_an_option_beside_a_part_of_it(of, tmp_path):
    migration = of("""ms.set_context(graph_kernel_flags="--opt_level=2", **{"graph_kernel_flags.opt_level": 3})""")
    assert migration.options == {"graph_kernel_flags": "--opt_level=2", "graph_kernel_flags.opt_level": 3}
    check_outputs(migration, tmp_path)


def test_an_alias_is_followed_and_not_reported(of):
    found = of("put = ms.set_context\nput(mode=0)\n")
    assert found.problems == ()
    assert found.options == {"mode": 0}
    of_others = (
        "from mindspore.train.serialization import load_checkpoint, context\nfrom mindspore.dataset import context as c\n"
    )
    assert of(f"{of_others}context.set_context(mode=context.GRAPH_MODE)\nc.set_context(max_call_depth=9)\n").options == {
        "mode": "GRAPH_MODE",
        "max_call_depth": 9,
    }


def test_an_unknown_flag_leaves_the_others(of):
    found = of('ms.set_context(graph_kernel_flags="--opt_level=2 --enable_expand_op=MatMul --dump_as_text")\n')
    assert found.options == {"graph_kernel_flags": "--opt_level=2 --dump_as_text"}
    assert [problem.path for problem in found.problems] == ["graph_kernel_flags.enable_expand_op"]


def test_a_use_of_set_context_that_cannot_be_followed_is_reported(of):
    found = of(
        "class T:\n"
        "    def __init__(self, context, **given):\n"
        "        self.set = ms.set_context\n"
        "        self.context = context\n"
        "        self.context.set_context(mode=0)\n"
        "partial(ms.set_context, mode=1)()\n"
        "ms.set_context(max_call_depth=9)\n"
    )
    assert found.options == {"max_call_depth": 9}
    assert [problem.mark.line for problem in found.problems] == [4, 6, 7]
    assert of("import torch\ntorch.set_context(mode=0)\nms.set_context(max_call_depth=9)\n").problems == ()


@pytest.mark.parametrize("first", ["", "precision_mode='force_fp16', "])
def test_options_of_the_device_of_the_script_act_on_the_device_given(write, tmp_path, first):
    """Those of another group, which MindSpore ignores there, stay in it; one CPU has no device_id."""
    calls = f"import mindspore as ms\nms.set_context({first}device_target='Ascend', device_id=1, \n"
    calls += "    gpu_config={'conv_fprop_algo': 'fft'},\n"
    path = write(f"{calls}ascend_config={{'precision_mode': 'force_fp32'}}, mode=0, memory_optimize_level='O1')\n")
    flat = {"mode": 0, "memory_optimize_level": "O1", "precision_mode": "force_fp32", "gpu_config": {"conv_fprop_algo": "fft"}}
    found = {device: migrate.read(path, device) for device in ("cpu", "cuda", "ascend")}
    for migration in found.values():
        check_outputs(migration, tmp_path)
        assert "ctx.watch" not in migrate.as_yaml(migration)  # the compiler computes again
    assert found["cpu"].options == flat | {"device_target": "CPU"}
    assert found["cuda"].options == flat | {"device_target": "GPU", "device_id": 1}
    assert found["ascend"].options["ascend_config"] == {"precision_mode": "force_fp32"}
    assert [p.path for p in found["cpu"].problems] == ["device_id", "gpu_config.conv_fprop_algo"]
    assert [len(found[device].problems) for device in ("cuda", "ascend")] == [1, 0]
    assert "where it is" not in migrate.as_yaml(found["ascend"])


BRANCHES = """\
if {name} == "Ascend":
    ms.set_context(max_device_memory="58GB", enable_graph_kernel=False)
elif {name} == "GPU" and fast:
    ms.set_context(max_device_memory="14GB", enable_graph_kernel=True)
else:
    ms.set_context(max_call_depth=9)
"""


@pytest.mark.parametrize(
    "name", ["device_target", "cfg.device_target", "cfg['device_target']", "ms.get_context('device_target')"]
)
def test_branches_for_other_devices_are_comments(write, tmp_path, name):
    path = write("import mindspore as ms\n" + BRANCHES.format(name=name))
    expected = {
        "ascend": {"max_device_memory": "58GB", "enable_graph_kernel": False},
        "cuda": {"max_device_memory": "14GB", "enable_graph_kernel": True, "max_call_depth": 9},
        "cpu": {"max_call_depth": 9},
    }
    for device, options in expected.items():
        migration = migrate.read(path, device)
        assert migration.options == options
        assert migrate.as_yaml(migration).count(f": not for {device}\n") == 5 - len(options)
        check_outputs(migration, tmp_path)
