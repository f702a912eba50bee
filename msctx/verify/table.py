"""The result as names and texts, for people."""

from __future__ import annotations

from typing import Any

from msctx.verify.result import Result

NO_KERNEL = "raises: it has no deterministic kernel"


def settings(result: Result) -> dict[str, str]:
    """What is not as it was under the certificate, which holds but digests of arguments."""
    return {
        f"differs: {name}": _other_argument(*both)
        if name.startswith("args.")
        else f"{_value(both[0])} there, {_value(both[1])} here"
        for name, both in result.settings.items()
    }


def _other_argument(there: Any, here: Any) -> str:
    return "given here alone" if there is None else "given there alone" if here is None else "another value"


def _value(one: Any) -> str:
    return "not set" if one is None else str(one)


def facts(result: Result) -> dict[str, str]:
    """What there is to know beside the sentence and the settings."""
    shown: dict[str, str] = {}
    if (found := result.finding) is not None:
        shown |= {
            "agree": f"{result.steps} step{'s' * (result.steps != 1)} and {result.operators} {result.unit} before it",
            "operator": found.operator,
            "module": found.module,
            "direction": found.direction,
            "step": str(found.step),
            "line": found.source,
            "forward operator": found.forward,
            "algorithms": ", ".join(found.algorithms) if any(one != "torch" for one in found.algorithms) else "",
        }
        shown |= {one["tensor"]: amount(one) for one in found.values}
    for one in result.candidates or ():
        where = f"{one['operator']} in {one['module'] or 'no module'}"
        cost = f"{one['on_us']:.0f} µs a step, {one['off_us']:.0f} µs without deterministic=ON" if "on_us" in one else NO_KERNEL
        shown[where] = cost
    shown |= {f"note {number}" if number > 1 else "note": text for number, text in enumerate(result.notes, 1)}
    return {name: text for name, text in shown.items() if text}


def amount(one: dict[str, Any]) -> str:
    """By how much a tensor differs."""
    if "compiled" in one:
        return f"relative error against float64: eager {one['eager']:.2g}, compiled {one['compiled']:.2g}"
    if one["differing"] is None:
        return "other shapes"
    parts = [f"{one['differing']} of {one['elements']} elements differ"]
    if one["max_difference"] is not None:
        parts.append(f"by {one['max_difference']:.3g} at most ({one['max_relative']:.3g} relative)")
    for name in ("nan", "inf"):
        if one["first"][name] != one["second"][name]:
            parts.append(f"{one['first'][name]} and {one['second'][name]} {name}")
    return ", ".join(parts)
