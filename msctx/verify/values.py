"""By how much two tensors differ that were written to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def difference(one: Path, other: Path) -> dict[str, Any]:
    """Of two tensors of one shape: how many elements differ, and by how much at most."""
    a, b = np.load(one), np.load(other)
    found: dict[str, Any] = {"elements": a.size, "differing": None, "max_difference": None, "max_relative": None}
    if a.shape != b.shape:
        return found
    found["differing"] = int((_bits(a) != _bits(b)).sum())
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        gap = np.abs(a - b)
        largest = np.maximum(np.abs(a), np.abs(b))
    is_finite = np.isfinite(gap)
    if is_finite.any():
        found["max_difference"] = float(gap[is_finite].max())
        scaled = gap[is_finite & (largest > 0)] / largest[is_finite & (largest > 0)]
        found["max_relative"] = float(scaled.max()) if scaled.size else 0.0
    for name, values in (("first", a), ("second", b)):
        finite = values[np.isfinite(values)].real
        found[name] = {
            "nan": int(np.isnan(values).sum()),
            "inf": int(np.isinf(values).sum()),
            "min": float(finite.min()) if finite.size else None,
            "max": float(finite.max()) if finite.size else None,
        }
    return found


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(values.size, -1).view(f"V{values.itemsize}")
