"""The policy for convolutions and products on one kind of device: what all options for them come to, as one value."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from msctx.options.conv_rules import REQUESTED, ConvRule, option_of, requested_by, rules_of
from msctx.options.kinds import Size
from msctx.shipped import KERNEL_SOURCES

RECORDED = "torch"
"""What a policy that records problems requests where nothing else is requested: torch's own path."""


@dataclass(frozen=True)
class ConvPolicy:
    """Each field has the name and the values of its option; ``PolicyOptions`` in kernels/include/msctx/policy.h reads it by name."""

    conv_fprop_algo: str | None = None
    conv_dgrad_algo: str | None = None
    conv_wgrad_algo: str | None = None
    matmul_algo: str | None = None
    conv_algo_rules: str | None = None
    matmul_algo_rules: str | None = None
    conv_workspace_limit: int | None = None
    conv_max_error: float | None = None
    matmul_max_error: float | None = None
    fallback: str = "warn"
    tuning_file: str | None = None
    work_path: str | None = None  # the folder in which problems are recorded, to be measured later; ``None``: they are not
    deterministic: bool = False
    thread_invariant: bool = False
    batch_invariant: bool = False
    torch_keeps_products: bool = False  # no option: MKL's strict mode keeps the bits of torch's own products
    conv_allow_tf32: bool = False
    matmul_allow_tf32: bool = False
    allow_fp32_emulation: bool = True
    frozen_weights: bool = False

    @property
    def algorithms(self) -> dict[str, str | None]:
        """Direction → the algorithm that its option names."""
        return {direction: getattr(self, option_of(direction)) for direction in REQUESTED}

    @property
    def rules(self) -> tuple[ConvRule, ...]:
        return tuple(rule for text in (self.conv_algo_rules, self.matmul_algo_rules) if text for rule in rules_of(text))

    @property
    def measures(self) -> bool:
        """Whether some call may run the fastest algorithm by measurement."""
        requested = requested_by(self.algorithms, self.conv_algo_rules, self.matmul_algo_rules)
        return any(name == "performance" for _, name in requested)

    def of_products(self) -> ConvPolicy:
        """What of it decides how products are computed."""
        others: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name.startswith("conv_")}
        return replace(self, **others, fallback="warn", work_path=None, frozen_weights=False)

    def as_dict(self) -> dict[str, Any]:
        """The fields that are not as by default."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.as_dict().items())


@cache
def able(ability: str, *, on_matrix_unit: bool = True) -> frozenset[tuple[str, ...]]:
    """(direction, algorithm) of those on a CPU that have an ability for some problems; with *on_matrix_unit*, on one with AMX.

    A plan needs no compiler, so it cannot ask the built library: tests/kernels/test_dispatch.py writes the file from that.
    """
    rows = json.loads((KERNEL_SOURCES / "abilities.json").read_bytes())[ability]
    names = [*rows["everywhere"], *(rows["on a matrix unit"] if on_matrix_unit else ())]
    return frozenset(tuple(name.split()) for name in names)


def plain(value: Any) -> Any:
    """A value of a switch as plain data."""
    if isinstance(value, ConvPolicy):
        return value.as_dict()
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, Size):
        return int(value)
    return {f.name: plain(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value
