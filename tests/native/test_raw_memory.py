"""Memory whose holder does not know where it came from, as oneDNN's: it crosses both borders of a scope, in threads too.

Each runs in a process of its own, in which a block that goes to the wrong allocator ends all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

Passes = Callable[..., str]

COMMON = """
import gc, itertools, threading, time, warnings
import torch, torch.utils.mkldnn, msctx
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(2)

def packed_convolution():
    plain, ones = torch.randn(64, 64, 3, 3).to_mkldnn(), [1, 1]
    weight = torch._C._nn.mkldnn_reorder_conv2d_weight(plain, ones, ones, ones, 1, [1, 64, 32, 32])
    return weight, weight.to_dense()

def packed_lstm():
    weights = torch.randn(256, 32), torch.randn(256, 64)
    return torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(*weights, 64, False, True, False, [5, 4, 32])

def mkldnn_tensor():
    tensor = torch.randn(64, 64, 32, 32).to_mkldnn()
    return tensor, tensor.relu(), tensor + tensor, torch.randn(3).to_mkldnn()

def mkldnn_model():
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 16, 3)).eval()
    model = torch.utils.mkldnn.to_mkldnn(model)
    with torch.no_grad():
        return model, model(torch.randn(2, 16, 24, 24).to_mkldnn())

def lstm():
    model = nn.LSTM(32, 64, 2).eval()
    with torch.no_grad():
        return model, model(torch.randn(5, 4, 32))

def bf16():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).bfloat16()
    y = model(torch.randn(32, 256).bfloat16())
    y.sum().backward()
    return model, y

def frozen():
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 22 * 22, 10)).eval()
    x = torch.randn(2, 16, 24, 24)
    model = torch.jit.optimize_for_inference(torch.jit.trace(model, x))
    with torch.no_grad():
        return model, [model(x) for _ in range(3)]

def quantised():
    torch.backends.quantized.engine = "onednn"
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 128), nn.LSTM(128, 32)), dtype=torch.qint8)
    x = torch.quantize_per_tensor(torch.randn(1, 16, 8, 8), 0.1, 0, torch.quint8)
    weight = torch.quantize_per_tensor(torch.randn(16, 16, 3, 3), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.conv2d_prepack(weight, None, [1, 1], [0, 0], [1, 1], 1)
    return model, model(torch.randn(4, 3, 64)), packed, torch.ops.quantized.conv2d(x, packed, 0.1, 0)

def trained():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 3, 3))
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    return model

def scope():
    return msctx.context(max_device_memory="1GB")
"""
USERS = [
    "mkldnn_tensor packed_convolution lstm trained",
    *(pytest.param(users, marks=pytest.mark.full) for users in ("packed_lstm mkldnn_model bf16", "quantised", "frozen")),
]


@pytest.mark.parametrize("users", USERS)
def test_it_is_released_on_the_other_side_of_a_border(users: str, passes: Passes) -> None:
    passes(f"""{COMMON}
def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def here(work):
    work()

held = []
for name in {users!r}.split():
    make = globals()[name]
    make()
    for made, released in itertools.product((here, in_thread), repeat=2):
        made(lambda: held.append(make()))
        with scope():
            released(held.clear)
            made(lambda: held.append(make()))
            with scope():
                make()
            kept = make()
        released(held.clear)
        del kept
    gc.collect()
    stats = msctx.memory_stats()
    assert name == "frozen" or stats["current_bytes"] == stats["reserved_bytes"] == 0, (name, stats)  # torch keeps that code
""")


@pytest.mark.full
def test_threads_without_a_context_go_on_while_others_enter_and_leave(passes: Passes) -> None:
    """What they have is released by whichever allocator is in force at that moment."""
    passes(f"""{COMMON}
stop, rounds, wrong = threading.Event(), [0] * 4, []

def work(number, make):
    try:
        while not stop.is_set():
            make()
            rounds[number] += 1
    except BaseException as error:
        wrong.append(error)

with scope():
    pass
threads = [threading.Thread(target=work, args=pair) for pair in enumerate((trained, bf16, lstm, mkldnn_tensor))]
for thread in threads:
    thread.start()
entered, end = 0, time.monotonic() + 3
while time.monotonic() < end or min(rounds) < 10:
    with scope():
        torch.ones(1000).to_mkldnn()
    entered += 1
stop.set()
for thread in threads:
    thread.join()
assert not wrong, wrong
assert entered > 10
""")


def test_what_is_left_when_the_interpreter_ends(passes: Passes) -> None:
    passes(f"""{COMMON}
import atexit
before = [make() for make in (mkldnn_tensor, lstm, trained)]
entered = scope()
entered.__enter__()
inside = [make() for make in (mkldnn_tensor, lstm, trained)]
atexit.register(lambda: (before.pop(), inside.pop()))
threading.Thread(target=lambda: time.sleep(60), daemon=True).start()
""")
