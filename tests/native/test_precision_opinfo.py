"""PyTorch's own samples of every governed operator, under the modes: it computes where float32 does, to the same shapes."""

from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from recorded import op_db
from torch.utils._pytree import tree_leaves

import msctx
from msctx.options.precision_policy import CLASS_OF, LEAVE, precision_of, text_of

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
MODES = ("allow_mix_precision_bf16", "force_fp16")
RANDOM = "dropout alpha_dropout feature_dropout native_dropout rrelu fractional_max_pool2d fractional_max_pool3d"


@cache
def infos() -> dict[str, list[Any]]:
    """Governed operator → what PyTorch's tests know of it."""
    found: dict[str, list[Any]] = {}
    for info in op_db():
        name = (info.aten_name or info.name).rpartition(".")[2]
        if name in CLASS_OF and torch.float32 in info.dtypes and not info.name.startswith("masked."):  # made of several
            found.setdefault(name, []).append(info)
    return found


def tensors(result: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point()]


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_samples(mode: str) -> None:
    """What float32 computes, a mode computes too, in the dtype that the table gives."""
    rules = precision_of(text_of({"precision_mode": mode})).rules
    seen, failed = 0, []
    for name, found in infos().items():
        rule = rules.get(name, LEAVE)
        for info in found:
            for sample in islice(info.sample_inputs("cpu", torch.float32, requires_grad=False), 2):
                torch.manual_seed(0)
                try:
                    expected = tensors(info.op(sample.input, *sample.args, **sample.kwargs))
                except (RuntimeError, NotImplementedError):
                    continue
                torch.manual_seed(0)
                try:
                    with msctx.context(precision_mode=mode) as ctx:
                        result = tensors(info.op(sample.input, *sample.args, **sample.kwargs))
                except Exception as error:
                    failed.append(f"{info.name}: {type(error).__name__} {error}")
                    continue
                seen += 1
                row = next((row for row in ctx.precisions() if row.operator == name), None)
                if row is None or any(t.dtype == torch.float64 for t in expected):
                    continue
                if row.dtype not in ("float64", "other") and row.dtype != rule.computes_in("float32"):
                    given = {
                        t.dtype for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)
                    }
                    if given <= {torch.float32} and "dtype" not in sample.kwargs:
                        failed.append(f"{name}: computed in {row.dtype}")
                if name not in RANDOM.split():
                    for one, other in zip(result, expected, strict=True):
                        assert one.shape == other.shape
    assert seen > 400
    assert not failed, "\n".join(dict.fromkeys(failed))
