"""Memory whose holder does not know where it came from, as oneDNN's: it crosses both borders of a scope, in threads too.

Each runs in a process of its own, in which a block that goes to the wrong allocator ends all.
"""

from __future__ import annotations

from collections.abc import Callable

COMMON = """
import atexit, gc, itertools, threading, warnings
import torch, torch.utils.mkldnn, msctx
from torch import nn

warnings.simplefilter("ignore")

def mkldnn_tensor():
    tensor = torch.randn(64, 64, 32, 32).to_mkldnn()
    return tensor, tensor.relu(), tensor + tensor, torch.randn(3).to_mkldnn()

def lstm():
    model = nn.LSTM(32, 64, 2).eval()
    with torch.no_grad():
        return model, model(torch.randn(5, 4, 32))

def trained():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 3, 3)).bfloat16()
    model(torch.randn(2, 3, 32, 32).bfloat16()).square().sum().backward()
    return model

USERS = mkldnn_tensor, lstm, trained
"""


def test_it_is_released_on_the_other_side_of_a_border(passes: Callable[..., str]) -> None:
    passes(f"""{COMMON}
def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

held = []
for make in USERS:
    for made, released in itertools.product((lambda work: work(), in_thread), repeat=2):
        made(lambda: held.append(make()))
        with msctx.context(max_device_memory="1GB"):
            released(held.clear)
            made(lambda: held.append(make()))
            with msctx.context(max_device_memory="1GB"):
                make()
            kept = make()
        released(held.clear)
        del kept
    gc.collect()
    stats = msctx.memory_stats()
    assert stats["current_bytes"] == stats["idle_bytes"] == 0, (make, stats)

before = [make() for make in USERS]  # left when the interpreter ends
entered = msctx.context(max_device_memory="1GB")
entered.__enter__()
inside = [make() for make in USERS]
atexit.register(lambda: (before.pop(), inside.pop()))
""")
