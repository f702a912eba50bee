"""Typical mistakes and what msctx answers: a golden file that a person has read, message by message.

``UPDATE_GOLDEN=1 pytest tests/test_mistakes.py`` writes ``data/mistakes.txt`` anew; read the difference before you commit it.
"""

import os
import re
from pathlib import Path

import pytest

import msctx
from msctx.cli import main

GOLDEN = Path(__file__).parent / "data" / "mistakes.txt"
TRAIN = "def train():\n    pass\n"

MISTAKES: dict[str, tuple[str, dict[str, str]]] = {
    "a misspelt option": ("explain x.yaml", {"x.yaml": "context:\n  determinstic: ON\n  runtime_threads: 4\n"}),
    "a misspelt value": ("explain conv_fprop_algo=winogard gpu_config.conv_dgrad_algo=algo_2", {}),
    "lower case": ("explain deterministic=on memory_optimize_level=o1", {}),
    "words of PyTorch and its frameworks": (
        "explain deterministic=warn precision_mode=bf16-mixed mode=max-autotune threads=4 cudnn_benchmark=1 "
        "allow_tf32=1 fp16=1 compile=1 precision=16-mixed use_deterministic_algorithms=1 CUDA_VISIBLE_DEVICES=0 jit_config=O1",
        {},
    ),
    "values of words that are no options": (
        "explain mixed_precision=fp16 precision=16 dtype=bfloat16 inter_op_num_threads=2 backend=inductor "
        "intra_op_parallel_num=2 max_split_size_mb=64 detect_anomaly=1 precision_mode=fp16-mixed",
        {},
    ),
    "a misspelt preset": ("explain reproducable", {}),
    "a misspelt preset before a command": ("exec reproducable -- true", {}),
    "text for a number": ("explain x.yaml", {"x.yaml": 'context:\n  runtime_num_threads: "8"\n  op_timeout: 1m\n'}),
    "a number that YAML 1.1 and 1.2 read differently": ("explain x.yaml", {"x.yaml": "context:\n  runtime_num_threads: 010\n"}),
    "memory": ("explain max_device_memory=4OGB mempool_block_size=512MB variable_memory_max_size=40GB", {}),
    "a comparison": (
        "compare x.yaml --axis deterministic=ON,OF",
        {
            "x.yaml": "compare:\n  workload: resnet5\n  directions: [fprop, forward]\n  second: 3\ncontext:\n  determinstic: ON\n"
            "axes:\n  conv_fprop_alg: [gemm]\n  conv_dgrad_algo: [algo_1, algo_9]\n"
        },
    ),
    "a workload": (
        "compare x.yaml",
        {
            "x.yaml": "workload:\n  layers:\n    - {input: 1x8x16x16, weight: 4x7x3x3}\n    - {input: 1x8x16, weight: 4x8x3x3}\n"
            "    - {a: 3x4, b: 5x6}\n    - {input: 1x8x16x16, weight: 4x8x3x3, strid: 2}\n"
        },
    ),
    "what cannot be compared": ("compare resnet5", {}),
    "a sweep": ("run x.yaml --sweep sed=1,2 --sweep deterministic", {"x.yaml": "experiment:\n  entry: train.py:train\n"}),
    "a key that is given twice": (
        "explain x.yaml",
        {"x.yaml": "context:\n  seed: 1\n  deterministic: OFF\n  seed: 2\n"},
    ),
    "an option outside `context:`": ("explain x.yaml", {"x.yaml": "deterministic: ON\nexperiment:\n  entry: train.py:train\n"}),
    "a key in the wrong group": ("explain x.yaml", {"x.yaml": "context:\n  gpu_config:\n    precision_mode: force_fp16\n"}),
    "a group that is no dictionary": ("explain x.yaml", {"x.yaml": "context:\n  gpu_config: winograd\n"}),
    "two that exclude each other": ("explain precision_mode=force_fp16 precision_mode_v2=fp16", {}),
    "one option, two values": ("explain deterministic=ON session.deterministic=0", {}),
    "a file that is not there": ("explain op_precision_mode=ops.ini", {}),
    "a word in a file of operators": (
        "explain op_precision_mode=ops.ini",
        {"ops.ini": "[ByOpType]\nSoftmaxV2=high_precison\nGelu\n[ByNodname]\nconv1=high_precision\n"},
    ),
    "JSON without a comma": (
        "explain env_config_path=env.json",
        {"env.json": '{\n  "rdr": {\n    "enable": true\n    "mode": 1\n  }\n}\n'},
    ),
    "keys and values of a JSON file": (
        "explain ascend_config.parallel_speed_up_json_path=speed.json",
        {
            "speed.json": '{\n  "enable_task_op": true,\n  "compute_communicate_fusion_level": 4,\n'
            '  "enable_grad_comm_opt": "on"\n}\n'
        },
    ),
    "flags in a text": (
        "explain x.yaml",
        {"x.yaml": 'context:\n  graph_kernel_flags: "--opt_level=7 dump_as_text --dump_at_text"\n'},
    ),
    "texts with a grammar": (
        "explain x.yaml",
        {
            "x.yaml": 'context:\n  dump_step: "5-3|7"\n  dynamic_dims: "20,20;40"\n  input_shape: "data:1,x"\n'
            '  stream_max_parallel_num: "AICore:2"\n'
        },
    ),
    "a word of a later release": ("explain jit_config.jit_level=O1 ascend_config.hccl_watchdog=true", {}),
    "a preset that does not exist": ("explain preset=reproducable", {}),
    "a preset and options beside it": ("explain preset=fst deterministic=maybe sed=1 gpu_config.conv_alow_tf32=true", {}),
    "a file of presets without options": (
        "explain x.yaml",
        {"x.yaml": "context:\n  preset: mine.yaml\n", "mine.yaml": "seed: 7\n"},
    ),
    "what is not YAML": ("explain x.yaml", {"x.yaml": "context:\n\tseed: 1\n"}),
    "a device that is not here": (
        "run x.yaml device_target=Ascend",
        {"x.yaml": "experiment:\n  entry: train.py:train\n", "train.py": TRAIN},
    ),
    "strict, and an option has no effect": (
        "run x.yaml --dry-run",
        {
            "x.yaml": "context:\n  strict: true\n  enable_dump: true\nexperiment:\n  entry: train.py:train\n",
            "train.py": TRAIN,
        },
    ),
    "an experiment that does not exist": ("run digit", {}),
    "a function that does not exist": (
        "run x.yaml",
        {"x.yaml": "experiment:\n  entry: train.py:trian\n", "train.py": TRAIN},
    ),
    "an option by a name that is none": ("options conv_alog", {}),
    "a file that exists already": ("init x.yaml", {"x.yaml": ""}),
}


def answer(command: str, files: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(SystemExit) as end:
        main(command.split())
    told = capsys.readouterr()
    assert end.value.code, "a mistake ends with an exit code of its own"
    text = told.err.replace(str(folder), "/home/me")
    return f"$ msctx {command}\n{text.rstrip()}\n(exit {end.value.code})\n"


@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_is_answered_as_it_was_read(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = msctx.get_context(), msctx.state()
    found = answer(*MISTAKES[title], tmp_path, capsys)
    assert (msctx.get_context(), msctx.state()) == before, "nothing was changed"
    assert "Traceback" not in found
    golden = sections()
    if os.environ.get("UPDATE_GOLDEN"):
        golden[title] = found
        parts = [f"## {t}\n\n{golden[t]}" for t in MISTAKES if t in golden]
        GOLDEN.write_text("\n".join(parts))
    assert found == golden.get(title)


def sections() -> dict[str, str]:
    text = GOLDEN.read_text() if GOLDEN.exists() else ""
    parts = re.split(r"^## (.*)\n\n", text, flags=re.MULTILINE)[1:]
    return {title: part.rstrip("\n") + "\n" for title, part in zip(parts[::2], parts[1::2], strict=True)}


def test_the_golden_file_holds_these_mistakes_and_no_others() -> None:
    assert list(sections()) == list(MISTAKES)
    assert len(MISTAKES) >= 20
