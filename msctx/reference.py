"""The reference: every option by the path under which its source documents define it, and what each device makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msctx.effects import Facts, Outcome, Want, translate
from msctx.effects.base import NOTHING_ASKED
from msctx.options import DEVICES, OPTIONS, UNSET, Layer, Option, Setting, Settings, option_of, rules
from msctx.options.layers import shipped
from msctx.plan import DONE, Plan, make

DICTIONARIES: Mapping[str, str] = {
    "aoe_config": "What aoe_tune_mode tunes, as a dictionary.",
    "ascend_config": "Options that mean the Ascend device alone, as a dictionary.",
    "ascend_config.ge_options": "Options in the words of CANN's graph engine, on the levels global and session.",
    "gpu_config": "Options that mean CUDA devices alone, as a dictionary.",
}
"""The paths of the catalogue that hold options and are none themselves."""

WEAKEST = ("refused", "not_built", "approximated", "honoured", "inert")
"""What a dictionary comes to: the first of these that one of its keys has."""


def paths() -> list[str]:
    """Every path of the catalogue, a dictionary before its keys."""
    found = [path for option in OPTIONS.values() for path in option.paths]
    for group in DICTIONARIES:
        found.insert(next(i for i, path in enumerate(found) if path.startswith(f"{group}.")), group)
    return found


def catalogue(device: str, settings: Settings | None = None) -> list[dict[str, Any]]:
    """One row per path of the catalogue: what an option is worth on a device, and what it is set to.

    An option that nobody set shows the default of its vocabulary, the status it would have, and the switches it would move.
    """
    settings = settings or Settings()
    plan = make(settings, Facts.only(device))
    rows: dict[str, dict[str, Any]] = {}
    for option in OPTIONS.values():
        for path in option.paths:
            rows[path] = _row(option, path, device, plan)
    for group in reversed(list(DICTIONARIES)):  # an inner one before the one around it
        rows[group] = _group(group, [row for path, row in rows.items() if path.startswith(f"{group}.")])
    return [rows[path] for path in paths()]


def _row(option: Option, path: str, device: str, plan: Plan) -> dict[str, Any]:
    rows = sorted((r for r in plan.rows if r.option == option.name), key=lambda r: (bool(r.winner), r.spelling != path))
    found = rows[0] if rows else None
    known = on_device(option, device)
    default = option.default_at(path)
    return {
        "path": path,
        "option": option.name,
        "aliases": [s for s in option.spellings if s != path],
        "value": found.value if found else None if default is UNSET else default,
        "origin": found.origin if found else "default",
        "status": found.status if found else known.status,
        "switches": sorted(found.assignments if found else known.assignments),
        "assignments": dict(found.assignments) if found else {},
        "reason": found.reason if found else known.reason,
    }


def _group(group: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    status = next(s for s in WEAKEST if any(m["status"] == s for m in members))
    mine = [m["path"][len(group) + 1 :] for m in members if m["status"] == status]
    origins = dict.fromkeys(m["origin"] for m in members if m["origin"] != "default")
    return {
        "path": group,
        "option": group,
        "aliases": [],
        "value": {
            m["path"][len(group) + 1 :]: m["value"]
            for m in members
            if m["origin"] != "default" and m["path"] not in DICTIONARIES
        },
        "origin": "; ".join(origins) or "default",
        "status": status,
        "switches": sorted({switch for m in members for switch in m["switches"]}),
        "assignments": {},
        "reason": f"the keys with this status: {', '.join(mine)}",
    }


@lru_cache(None, typed=True)
def on_device(option: Option, device: str, value: Any = UNSET) -> Outcome:
    """What an option is worth on a device: the best that any of its values comes to, and all switches they move."""
    values = [option.example, option.default, *option.choices, True, False] if value is UNSET else [value]
    found = [o for o in (_outcome(option, v, device) for v in values if v is not UNSET) if o is not None]
    if not found:
        return Outcome("inert", {}, f"it has no meaning on {device}")
    best = next((o for o in found if o.status in DONE and o != NOTHING_ASKED), found[0])
    switches = {switch: v for o in found for switch, v in o.assignments.items()}
    return Outcome(best.status, switches, best.reason)


def _outcome(option: Option, value: Any, device: str) -> Outcome | None:
    """What one value of an option comes to, beside those that it is a part of."""
    try:
        value = option.adapter.validate_python(value, strict=True)
    except ValueError:
        return None
    beside = {"deterministic": "ON", "conv_fprop_algo": "performance"} if option.source == "msctx" else {}
    settings = {n: Setting(option_of(n), n, v, "reference") for n, v in beside.items() if n != option.name}
    settings[option.name] = Setting(option, option.name, value, "reference")
    if option.name == "default_device":
        target = {"cpu": "CPU", "cuda": "GPU", "ascend": "Ascend"}[device]
        settings["device_target"] = Setting(option_of("device_target"), "device_target", target, "reference")
    return translate(Want(option, value, device, Settings([Layer(settings)]), Facts.only(device)))


def listing(names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Every option, or those named, as the reference knows it."""
    return [describe(OPTIONS[name]) for name in (OPTIONS if names is None else names)]


def describe(option: Option) -> dict[str, Any]:
    """One option whole: what it takes, what it means, and what each device makes of it."""
    return {
        "name": option.name,
        "paths": list(option.paths),
        "aliases": [s for s in option.spellings if s != option.name],
        "ge": option.ge or None,
        "help": option.help,
        "allowed": allowed(option),
        "values": [
            {
                "value": choice,
                "means": getattr(option.kind, "meanings", {}).get(choice, ""),
                "also": [alias for alias, target in getattr(option.kind, "aliases", {}).items() if target is choice],
                "status": {device: on_device(option, device, choice).status for device in DEVICES},
            }
            for choice in option.choices
        ],
        "default": None if option.default is UNSET else option.default,
        "defaults": {group: None if v is UNSET else v for group, v in option.defaults.items()},
        "devices": list(option.devices),
        "status": {device: _status(option, device) for device in DEVICES},
        "interactions": rules.sentences(option.name),
        "keys": members(option.name),
        "replaced_by": option.replaced_by or None,
        "source": option.source,
        "example": option.example,
        "file": (shipped("files") / option.example).read_text(encoding="utf-8") if option.names_file else None,
    }


def _status(option: Option, device: str) -> dict[str, Any]:
    outcome = on_device(option, device)
    return {"status": outcome.status, "switches": sorted(outcome.assignments), "reason": outcome.reason}


def allowed(option: Option) -> str:
    """What an option takes, in words."""
    return (
        option.kind.allowed if option.kind is not None else "{key: text}" if "dict" in str(option.type) else "a path, or null"
    )


def members(group: str) -> list[str]:
    """The options whose spelling stands below *group*: ``gpu_config``, ``session``, ``device_context.gpu`` …"""
    return [o.name for o in OPTIONS.values() if any(s.startswith(f"{group}.") for s in o.spellings)]


__all__ = ["allowed", "catalogue", "describe", "listing", "members", "on_device", "paths"]
