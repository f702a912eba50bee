"""Statistics and digests that the collector takes of tensors: right for any layout, dtype and number of threads."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listeners import Listens

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize(
    ("given", "least", "largest"),
    [
        (torch._neg_view(torch.tensor([1.0, 2.0])), -2.0, -1.0),
        (torch.tensor([1 + 2j, 3 + 4j]).conj(), -4.0, 3.0),
        (torch.tensor([1 + 2j, 3 + 4j]).conj().imag, -4.0, -2.0),
        (torch._neg_view(torch.tensor([[1.0], [2.0]])).expand(2, 3), -2.0, -1.0),
    ],
)
def test_signs_that_memory_does_not_hold_count(given: torch.Tensor, least: float, largest: float, collected: Any) -> None:
    (row,) = collected(lambda: given.clone())
    for tensor in (row["inputs"][0], row["outputs"][0]):
        assert (tensor["min"], tensor["max"]) == (least, largest)
        assert tensor["count"] == given.numel() * (2 if given.is_complex() else 1)


def laid_out(x: torch.Tensor, how: str) -> torch.Tensor:
    return {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "sliced": torch.cat([x, x], -1)[..., : x.shape[-1]],
        "transposed": x.transpose(1, 3).contiguous().transpose(1, 3),
        "expanded": x[:1].expand_as(x),
    }[how]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 5), min_size=4, max_size=4).map(tuple),
    st.sampled_from(DTYPES),
    st.sampled_from(["contiguous", "channels_last", "sliced", "transposed", "expanded"]),
    st.integers(0, 99),
)
def test_statistics_of_any_tensor(collected: Any, shape: Any, dtype: torch.dtype, how: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 10
    values[torch.rand(shape, generator=generator) < 0.1] = float("nan")
    values[torch.rand(shape, generator=generator) < 0.1] = -float("inf")
    x = laid_out(values.to(dtype) if dtype.is_floating_point else values.nan_to_num(0, 0, 0).abs().to(dtype), how)
    (row,) = [row for row in collected(lambda: torch.fliplr(x) if x.dim() > 1 else x) if row["operator"] == "aten::flip"]
    (found,) = row["inputs"]
    exact = x.double().numpy()
    finite = exact[np.isfinite(exact)]
    counts = (exact.size, np.isnan(exact).sum(), (exact == -np.inf).sum(), (exact == 0).sum(), (exact < 0).sum())
    assert tuple(found[key] for key in ("count", "nan", "negative_inf", "zero", "negative")) == counts
    if len(finite):
        assert (found["min"], found["max"]) == (finite.min(), finite.max())
        assert found["mean"] == pytest.approx(finite.mean(), rel=1e-9, abs=1e-9)
        assert found["l2"] == pytest.approx(np.sqrt((finite**2).sum()), rel=1e-9)


def digest(collected: Any, x: torch.Tensor) -> int:
    (row,) = [row for row in collected(lambda: torch.neg(x), inputs=1, digests=1) if row["operator"] == "aten::neg"]
    return int(row["inputs"][0]["digest"])


def test_a_digest_is_of_values_and_their_places(collected: Any) -> None:
    x = torch.randn(2, 3, 4, 5)
    before = digest(collected, x)
    for how in ("channels_last", "sliced", "transposed"):
        assert digest(collected, laid_out(x, how)) == before
    for other in (x[:1].expand(2, 3, 4, 5), torch.view_as_complex(x[..., :4].reshape(2, 3, 4, 2, 2).contiguous()).mT.conj()):
        assert digest(collected, other) == digest(collected, other.resolve_conj().contiguous())
    assert digest(collected, x.reshape(2, 3, 5, 4)) != before
    assert digest(collected, x.flip(3)) != before
    swapped = x.clone()
    swapped[0, 0, 0, :2] = x[0, 0, 0, [1, 0]]
    assert digest(collected, swapped) != before
    x[1, 2, 3, 4] = torch.nextafter(x[1, 2, 3, 4], torch.tensor(9.0))
    assert digest(collected, x) != before


def test_a_dtype_without_statistics_has_its_digest_beside_them(collected: Any) -> None:
    x = torch.zeros(8, dtype=torch.uint8).view(torch.bits8)
    (alone,) = collected(lambda: x.clone(), inputs=1, digests=1)
    other = Listens(inputs=1, statistics=1)
    other.begin()
    (beside,) = collected(lambda: x.clone(), inputs=1, digests=1)
    other.end()
    assert beside["inputs"] == alone["inputs"]
    assert (alone["inputs"][0]["digest"], other.rows[-1]["inputs"][0]["unread"]) != (None, "")


def test_values_depend_on_no_number_of_threads(collected: Any) -> None:
    x, before = torch.randn(1 << 20), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            (row,) = collected(lambda: torch.neg(x))
            found.append({key: row["inputs"][0][key] for key in ("min", "max", "mean", "l2", "digest")})
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
