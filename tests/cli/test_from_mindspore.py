"""What a reader who comes from MindSpore asks, and the words of the answer."""

from pathlib import Path

import pytest

SCRIPT = """\
import mindspore as ms
ms.set_context(device_target="Ascend", gpu_config={"conv_allow_tf32": False}, ascend_config={"precision_mode": "force_fp32"})
ms.set_context(deterministic=given)
"""
ANSWERS = [
    ("explain device_context.cpu.op_tuning.threads_num=4 runtime_num_threads=3 --device cuda", "torch.num_threads = 4"),
    (
        "explain strict=true inter_op_parallel_num=4 --device cpu",
        "refuses what stays after it; msctx.set_context sets it: inter_op",
    ),
    ("explain ascend_config.precision_mode=force_fp32 --device GPU", "Written as precision_mode it acts on this device"),
    ("explain deterministic=ON --device npu", "ascend  approximated"),
    ("migrate x.py --device toaster", "error: device: 'toaster' is not a device\n      allowed: cpu, cuda, ascend"),
    ("migrate x.py --device cuda", "2 of 3 options applied; not: ascend_config.precision_mode"),
    ("migrate x.py --device cuda", "x.py:2:30  device_target=Ascend: for cuda change it to GPU"),
]


@pytest.mark.parametrize(("words", "answer"), ANSWERS)
def test_the_answer_has_these_words(msctx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, answer: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text(SCRIPT)
    _, out, err = msctx(*words.split())
    assert answer in out + err
    assert (out + err).count("known only when the script runs") in (0, 3)  # in both forms, and in one note
