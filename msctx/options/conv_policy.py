"""The policy for convolutions on one kind of device: what all options for them come to together, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from msctx.options.conv_rules import DIRECTIONS, ConvRule, asked_by, rules_of


@dataclass(frozen=True)
class ConvPolicy:
    """Each field has the name and the values of its option.

    A field of type ``bool`` has its place in ``PolicyOptions`` (kernels/include/msctx/policy.h), in the same order.
    """

    conv_fprop_algo: str | None = None
    conv_dgrad_algo: str | None = None
    conv_wgrad_algo: str | None = None
    conv_algo_rules: str | None = None
    conv_workspace_limit: int | None = None
    conv_max_error: float | None = None
    fallback: str = "warn"
    tuning_file: str | None = None
    deterministic: bool = False
    thread_invariant: bool = False
    batch_invariant: bool = False
    conv_allow_tf32: bool = False
    allow_fp32_emulation: bool = True
    frozen_weights: bool = False

    @property
    def algorithms(self) -> dict[str, str | None]:
        """Direction → the algorithm that its option names."""
        return {direction: getattr(self, f"conv_{direction}_algo") for direction in DIRECTIONS}

    @property
    def rules(self) -> tuple[ConvRule, ...]:
        return rules_of(self.conv_algo_rules) if self.conv_algo_rules else ()

    @property
    def measures(self) -> bool:
        """Whether some convolution may run the fastest algorithm by measurement."""
        return any(name == "performance" for _, name in asked_by(self.algorithms, self.conv_algo_rules))

    def as_dict(self) -> dict[str, Any]:
        """The fields that are not as by default."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.as_dict().items())


FLAGS = tuple(f.name for f in fields(ConvPolicy) if f.type == "bool")


def plain(value: Any) -> Any:
    """A value of a switch as plain data."""
    return value.as_dict() if isinstance(value, ConvPolicy) else value
