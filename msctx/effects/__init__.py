"""HOW each option is carried out, the devices side by side; one file per theme. Pure: imports no torch."""

from msctx.effects.algorithms import NATIVE
from msctx.effects.base import EFFECTS, Facts, Outcome, Want, translate
from msctx.effects.memory import POOL
from msctx.effects.policies import PRECISION

NEED_CORE = (*NATIVE, *PRECISION, *POOL)
"""The options for which the native core is built and loaded."""

__all__ = ["EFFECTS", "NEED_CORE", "Facts", "Outcome", "Want", "translate"]
