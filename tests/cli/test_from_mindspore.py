"""What a reader who comes from MindSpore asks, and the words of the answer; what `msctx migrate` prints, and its exit codes."""

import re
from pathlib import Path

import pytest

SCRIPT = """\
import mindspore as ms
ms.set_context(device_target="Ascend", gpu_config={"conv_allow_tf32": False}, ascend_config={"precision_mode": "force_fp32"})
ms.set_context(deterministic=given, memory_optimize_level="O1", jit_level="O1", graph_kernel_flags="--x=1")
ms.device_context.ascend.op_debug.debug_option("oom")
"""
ANSWERS = [
    ("explain device_context.cpu.op_tuning.threads_num=4 runtime_num_threads=3 --device cuda", "torch.num_threads = 4"),
    ("explain strict=true inter_op_parallel_num=4 --device cpu", "refuses what stays after it; msctx.set_context sets it"),
    ("explain ascend_config.precision_mode=force_fp32 --device GPU", "Written as precision_mode it acts on this device"),
    ("explain deterministic=ON --device npu", "ascend  approximated"),
    ("explain deterministic=ON --device npu", "1 of 1 options take effect (1 approximated)\nAscend: never run on a chip\n"),
    ("explain mode=GRAPH_MODE", "mode = GRAPH_MODE (0)"),
    ("explain --all --device ascend", "; Ascend: never run on a chip\n"),
    ("options deterministic", "\nAscend: never run on a chip\n"),
    ("options gpu_config", "\nAscend: never run on a chip\n"),
    ("migrate x.py --device toaster", "error: device: 'toaster' is not a device\n      allowed: cpu, cuda, ascend"),
    ("migrate x.py --device cuda", "5 of 5 options take effect"),
    ("migrate x.py --device cuda", "MindSpore ignores it with device_target='Ascend'; here it acts on cuda alone"),
    ("migrate x.py --device cuda", "  device_target: \"GPU\"  # x.py:2, where it is 'Ascend'"),
    ("migrate x.py", "  enable_graph_kernel: true  # x.py:3, jit_level='O1'"),
    ("migrate x.py", "x.py:4:1  ms.device_context.ascend.op_debug.debug_option: not translated: the option op_debug_config"),
    ("migrate x.py", "# ctx.watch(model): memory_optimize_level acts on the models that it names"),
    (
        "explain ascend_config.op_debug_option=oom",
        "has it since 2.3.1, and msctx has no such option; the option op_debug_config",
    ),
    ("options jit_config.jit_level", "the option enable_graph_kernel is False for jit_level O0"),
    ("explain pynative_synchronize=true --device cpu", "also turns on anomaly mode"),
    ("explain max_device_memory=1GB --device cpu", "at most what the host has free"),
]


@pytest.mark.parametrize(("words", "answer"), ANSWERS)
def test_the_answer_has_these_words(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, answer: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text(SCRIPT)
    _, out, err = command(*words.split())
    assert answer in out + err
    lines = [int(line) for line in re.findall(r"note: x\.py:(\d+)", err)]
    assert lines == sorted(lines), "in the order of the script, also what is inside a text"
    assert (out + err).count("known only when the script runs") in (0, 2)  # in the YAML, and in a note


ROOT = Path(__file__).parents[2]
RESNET = ROOT / "tests" / "data" / "migrate" / "resnet.py"


def test_migrate_shows_yaml_and_statuses(command, tmp_path):
    code, out, err = command("migrate", str(RESNET), "--device", "cuda")
    (tmp_path / "x.yaml").write_text(out)
    assert command("explain", str(tmp_path / "x.yaml"))[0] == code == 0
    assert 'deterministic: "ON"  # resnet.py:49' in out
    assert "torch.cudnn.deterministic = True" in err
    assert "note: " in err
    assert "device_target: args.device_target is known only when the script runs" in err


def test_migrate_of_a_script_that_sets_nothing(command, tmp_path):
    (tmp_path / "x.py").write_text("print(1)\n")
    code, _, err = command("migrate", str(tmp_path / "x.py"))
    assert code == 1
    assert "no call that sets MindSpore's context was found" in err
    assert command("migrate", str(tmp_path / "none.py"))[0] == 3
