"""Worker processes run under what the thread that started them held, by fork or by spawn; or under a context of their own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import msctx

PROGRAM = """
import multiprocessing, sys, threading
import torch, msctx
from torch.utils.data import DataLoader, Dataset

def holds():
    a = torch.ones(2, 2)
    return str((a @ a).dtype), torch.are_deterministic_algorithms_enabled(), msctx.get_context("deterministic")

class Data(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return holds()

def put(queue):
    queue.put(holds())

def put_from_child(queue, method):
    run(multiprocessing.get_context(method), put, queue)

def run(context, *call):
    process = context.Process(target=call[0], args=call[1:])
    process.start()
    process.join()
    assert process.exitcode == 0

def loaded(method, **options):
    (found,) = DataLoader(Data(), batch_size=None, num_workers=1, multiprocessing_context=method, **options)
    return tuple(found)

if __name__ == "__main__":
    method = sys.argv[1]
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    BOTH, NONE = ("torch.bfloat16", True, "ON"), ("torch.float32", False, "OFF")
    own = msctx.context(seed=3)
    with msctx.context(precision_mode="allow_mix_precision_bf16", deterministic="ON"):
        assert loaded(method) == BOTH
        assert loaded(method, worker_init_fn=own.worker_init_fn) == NONE
    run(context, put, queue)
    assert queue.get() == NONE
    msctx.set_context(deterministic="ON")
    with msctx.context(precision_mode="allow_mix_precision_bf16"):
        run(context, put_from_child, queue, method)
        assert queue.get() == BOTH
        thread = threading.Thread(target=run, args=(context, put, queue))
        thread.start()
        thread.join()
        assert queue.get() == ("torch.float32", True, "ON"), "the thread holds no precision_mode"
    print("done")
"""


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_hold_what_their_parent_holds(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program), method], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_what_cannot_be_held_is_reported() -> None:
    with msctx.context(device_target="CPU") as ctx:
        (layer,) = pickle.loads(pickle.dumps(ctx.worker_init_fn)).layers
        assert [(s.spelling, s.value) for s in layer.settings.values()] == [("device_target", "CPU")]
    broken = msctx.context(device_target="Ascend").worker_init_fn
    with pytest.warns(msctx.MsctxWarning, match="this process runs without the options of the one that started it"):
        broken()
