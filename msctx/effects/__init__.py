"""HOW each option is carried out, the devices side by side; one file per theme. Pure: imports no torch."""

from msctx.effects.algorithms import BY_NAME, INVARIANT, NATIVE
from msctx.effects.base import AS_FOUND, EFFECTS, THEMES, Facts, Outcome, Want, translate
from msctx.effects.kernel_tuning import TUNING
from msctx.effects.memory import POOL, SHOW_FREE
from msctx.effects.observers import OBSERVERS
from msctx.options.precision_rules import PRECISION

NEED_CORE = frozenset(
    (*NATIVE, *PRECISION, *POOL, *TUNING, *OBSERVERS, "matmul_allow_tf32", "experimental_accelerate_train_mode")
)
"""The options for which the native core may be built and loaded."""

__all__ = [
    "AS_FOUND",
    "BY_NAME",
    "EFFECTS",
    "INVARIANT",
    "NEED_CORE",
    "SHOW_FREE",
    "THEMES",
    "Facts",
    "Outcome",
    "Want",
    "translate",
]
