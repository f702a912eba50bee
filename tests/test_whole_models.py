"""Training steps of whole models under thread_invariant: the same bits, but for the operators that the documentation names."""

from collections.abc import Callable

import pytest

from msctx.switches import mkl

STEPS = """
import torch
import msctx
from torch import nn
from torch.nn import functional as F

class Residual(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(k), nn.BatchNorm2d(k)
        self.skip = nn.Identity() if c == k else nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))
    def forward(self, x):
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + self.skip(x))

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))

def resnet18():
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        *(Residual(c, k, 1 + (c != k)) for c, k in zip(widths, widths[1:])),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )

convolutional = resnet18()
assert sum(p.numel() for p in convolutional.parameters()) == 11689512, "ResNet-18"
transformer = nn.Sequential(nn.Embedding(100, 128), Block(128), Block(128), nn.LayerNorm(128), nn.Linear(128, 100), nn.Flatten(0, 1))
torch.manual_seed(0)
images, words = torch.randn(6, 3, 64, 64), torch.randint(0, 100, (8, 128))

def step(model, x, threads):
    torch.set_num_threads(threads)
    model.zero_grad()
    result = model(x)
    F.cross_entropy(result, torch.arange(len(result)) % 100).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}

norms = {f"{path}.{name}" for path, m in transformer.named_modules() if isinstance(m, nn.LayerNorm) for name in ("weight", "bias")}

def differing(model, x):
    one = step(model, x, 1)
    return {name for threads in (2, 3) for name, grad in step(model, x, threads).items() if not torch.equal(grad, one[name])}
"""


has_strict_mode = mkl.has_mkl() and mkl.is_intels()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", marks=pytest.mark.skipif(not has_strict_mode, reason="no MKL with a strict mode"), id="by MKL"),
        pytest.param("images.flatten(1) @ images.flatten(1).t()", id="by our own kernel"),
    ],
)
def test_gradients_have_the_same_bits_for_any_number_of_threads(passes: Callable[..., str], before: str) -> None:
    passes(f"""{STEPS}
{before}
msctx.set_context(thread_invariant=True)
assert not differing(convolutional, images)
assert differing(transformer, words) <= norms, "LayerNorm's parameters alone, as docs/how-to/convolutions.md has it"
""")


@pytest.mark.full
@pytest.mark.skipif(not has_strict_mode, reason="another library may keep them")
def test_without_it_they_do_not(passes: Callable[..., str]) -> None:
    passes(f"""{STEPS}
assert differing(convolutional, images) | differing(transformer, words) - norms
""")
