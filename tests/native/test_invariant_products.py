"""batch_invariant and thread_invariant over many batches and numbers of threads: the bits of a row are those of the whole batch."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as fn

import msctx

ROWS, DEPTH, COLUMNS = 4096, 70, 24
BATCHES = (1, 2, 3, 5, 17, 64, 255, 1000, 2049, ROWS)
THREADS = (1, 2, 3, 4)


def rows(dtype: torch.dtype) -> Tensor:
    return torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(0)).to(dtype)


def weight(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def recurrent(kind: str, size: int, x: Tensor) -> Tensor:
    torch.manual_seed(2)
    module = getattr(torch.nn, kind)(10, size, 2, batch_first=True, bidirectional=True).to(x.dtype)
    return module(x.view(-1, 7, 10))[0]


def packed(x: Tensor) -> Tensor:
    """Sequences of 3, 4 and 7 steps in turn, on their own and in the whole batch."""
    torch.manual_seed(2)
    module = torch.nn.LSTM(10, 9, 2, batch_first=True, bidirectional=True, proj_size=4).to(x.dtype)
    lengths = torch.tensor([(3, 4, 7)[row[0, 0].double().abs().mul(1000).long().item() % 3] for row in x.view(-1, 7, 10)])
    given = torch.nn.utils.rnn.pack_padded_sequence(x.view(-1, 7, 10), lengths, batch_first=True, enforce_sorted=False)
    results, (h, c) = module(given)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(results, batch_first=True, total_length=7)
    return torch.cat([padded.flatten(1), h.transpose(0, 1).flatten(1), c.transpose(0, 1).flatten(1)], 1)


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: torch.mm(x, weight(x.dtype, DEPTH, COLUMNS)),
    "addmm": lambda x: torch.addmm(weight(x.dtype, COLUMNS), x, weight(x.dtype, DEPTH, COLUMNS), beta=0.3, alpha=0.7),
    "linear": lambda x: fn.linear(x, weight(x.dtype, COLUMNS, DEPTH), weight(x.dtype, COLUMNS)),
    "linear of a view": lambda x: fn.linear(x.view(-1, 7, 10).mT, weight(x.dtype, COLUMNS, 7), weight(x.dtype, COLUMNS)),
    "mv": lambda x: torch.mv(x, weight(x.dtype, DEPTH)),
    "bmm": lambda x: torch.bmm(x.view(-1, 7, 10), weight(x.dtype, 10, 6).expand(len(x), 10, 6)),
    "dot": lambda x: torch.stack([torch.dot(row, weight(x.dtype, DEPTH)) for row in x]),
    "attention": lambda x: fn.scaled_dot_product_attention(*[x.view(-1, 2, 7, 5)] * 3, is_causal=True),
    "masked attention": lambda x: fn.scaled_dot_product_attention(
        *x.view(-1, 1, 7, 10).split((4, 4, 2), -1), attn_mask=weight(x.dtype, 7, 7), scale=0.3
    ),
    "grouped attention": lambda x: fn.scaled_dot_product_attention(
        x.view(-1, 2, 7, 5), *[x.view(-1, 2, 7, 5)[:, :1]] * 2, enable_gqa=True
    ),
    "LSTM": lambda x: recurrent("LSTM", 9, x),
    "packed LSTM": packed,
    "GRU": lambda x: recurrent("GRU", 32, x),
    "convolution": lambda x: fn.conv2d(x.view(-1, 2, 5, 7), weight(x.dtype, 5, 2, 3, 3), padding=1),
    "1x1": lambda x: fn.conv2d(x.view(-1, 10, 1, 7), weight(x.dtype, 6, 10, 1, 1)),
    "depthwise": lambda x: fn.conv2d(x.view(-1, 2, 5, 7), weight(x.dtype, 2, 1, 3, 3), padding=1, groups=2),
    "transposed": lambda x: fn.conv_transpose2d(x.view(-1, 2, 5, 7), weight(x.dtype, 2, 3, 3, 3), stride=2),
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_row_has_the_bits_that_it_has_in_the_whole_batch(name: str, dtype: torch.dtype) -> None:
    x = rows(dtype)
    with msctx.context(batch_invariant=True, fallback="error"):
        torch.set_num_threads(1)
        whole = CALLS[name](x)
        for n, batch in enumerate(BATCHES):
            torch.set_num_threads(THREADS[n % len(THREADS)])
            for first in {0, ROWS - batch}:
                assert torch.equal(CALLS[name](x[first : first + batch]), whole[first : first + batch]), (batch, first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["linear of a view", "attention", "LSTM", "packed LSTM", "GRU"])
def test_the_same_in_inference_mode(name: str, dtype: torch.dtype) -> None:
    """There no kernel of autograd's keys is called."""
    with torch.inference_mode():
        test_a_row_has_the_bits_that_it_has_in_the_whole_batch(name, dtype)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_have_the_same_bits_for_any_number_of_threads(name: str) -> None:
    x = rows(torch.float32)[:300].requires_grad_()
    with msctx.context(thread_invariant=True, fallback="error"):
        found = []
        for threads in THREADS:
            torch.set_num_threads(threads)
            result = CALLS[name](x)
            found.append((result.detach(), *torch.autograd.grad(result.square().sum(), x)))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def compared(run: Callable[..., list[Tensor]], has_truth: bool = True) -> None:
    """Under an invariance what *run* gives is as exact as torch's, and laid alike."""
    ours = run(torch.float32, batch_invariant=True, strict=True)
    for found, plain in zip(ours, run(torch.float32), strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
        assert found.stride() == plain.stride()
    for found, exact in zip(ours, run(torch.float64), strict=True) if has_truth else ():
        torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [(3, 3), (4, 2)], ids=["", "grouped"])
def test_lstm_and_attention_are_as_exact_as_torchs(heads: tuple[int, int]) -> None:
    """Values, states and all gradients, also after the block; a mask that leaves a row nothing."""
    lstm = torch.nn.LSTM(10, 9, 2, bidirectional=True)
    mask = torch.rand(7, 5) > 0.3
    mask[2] = False

    def run(dtype: torch.dtype, **options: Any) -> list[Tensor]:
        torch.manual_seed(1)
        lstm.to(dtype)
        sizes = ((3, 10), (heads[0], 7, 8), (heads[1], 5, 8), (heads[1], 5, 8))
        x, q, k, v = (torch.randn(2, *size).to(dtype).requires_grad_() for size in sizes)
        with msctx.context(**options):
            y, (h, c) = lstm(x)
            out = fn.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        loss = (y.square().sum() + h.sum() + c.sum()).double() + out.square().sum()
        return [y, h, c, out, *torch.autograd.grad(loss, [x, q, k, v, *lstm.parameters()])]

    compared(run)


@pytest.mark.parametrize(
    "how", [{"proj_size": 4}, {"bidirectional": True, "bias": False}, {"num_layers": 2, "dropout": 0.5}], ids=str
)
@pytest.mark.filterwarnings("error:.*an autograd kernel was not registered")
def test_a_packed_lstm_is_as_exact_as_torchs(how: dict[str, Any]) -> None:
    """Sequences of 5, 3, 3 and 1 steps."""
    lstm = torch.nn.LSTM(10, 9, **how)

    def run(dtype: torch.dtype, **options: Any) -> list[Tensor]:
        torch.manual_seed(1)
        x = torch.randn(5, 4, 10).to(dtype).requires_grad_()
        given = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 3, 1]))
        torch.manual_seed(3)
        with msctx.context(**options):
            y, (h, c) = lstm.to(dtype)(given)
        loss = y.data.square().sum() + h.sum() + c.sum()
        return [y.data, h, c, *torch.autograd.grad(loss, [x, *lstm.parameters()])]

    compared(run, has_truth="dropout" not in how)  # masks of float64 are other ones


@pytest.mark.parametrize(
    ("length", "batch", "states", "weights", "layers", "error"),
    [
        (3, 0, 2, 4, 1, None),
        (0, 2, 2, 4, 1, "sequence length"),
        (3, 2, 1, 4, 1, "two hidden states"),
        (3, 2, 2, 2, 1, "not divisible"),
        (3, 2, 2, 4, 2, "invalid slice"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*mkldnn_rnn_layer")
def test_an_lstm_of_nothing_or_of_too_little_is_torchs(
    length: int, batch: int, states: int, weights: int, layers: int, error: str | None
) -> None:
    given = [torch.randn(28, 5), torch.randn(28, 7), torch.randn(28), torch.randn(28)][:weights]
    x, hx = torch.randn(length, batch, 5), [torch.zeros(1, batch, 7)] * states
    with msctx.context(thread_invariant=True), pytest.raises(RuntimeError, match=error) if error else nullcontext():
        assert torch.lstm(x, hx, given, True, layers, 0.0, False, False, False)[0].shape == (3, 0, 7)
        assert torch.nn.LSTM(5, 7, batch_first=True)(x.mT.reshape(0, 3, 5))[0].shape == (0, 3, 7)
