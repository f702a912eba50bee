"""HOW each option is carried out, the devices side by side; one file per theme. Pure: imports no torch."""

from msctx.effects.algorithms import NATIVE
from msctx.effects.base import EFFECTS, Facts, Outcome, Want, translate

__all__ = ["EFFECTS", "NATIVE", "Facts", "Outcome", "Want", "translate"]
