"""The reference: every option by the path under which its source documents define it, and what each device makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from msctx.errors import OptionError
from msctx.options import DEVICES, OPTIONS, UNSET, Option, Settings, device_of, make_layer
from msctx.options.kinds import Size
from msctx.options.rules import Needs, Rule, about
from msctx.plan import DONE, TARGETS, Plan, Row, make
from msctx.shipped import CONFIGS
from msctx.themes import Facts, On, Outcome, translate

DICTIONARIES: Mapping[str, str] = {
    "aoe_config": "What aoe_tune_mode tunes, as a dictionary.",
    "ascend_config": "Options only for the Ascend device, as a dictionary.",
    "ascend_config.ge_options": "Options in the words of CANN's graph engine, on the levels global and session.",
    "gpu_config": "Options only for CUDA devices, as a dictionary.",
}
"""The paths of the catalogue that hold options and are none themselves."""

WEAKEST = ("refused", "approximated", "honoured", "inert")
"""What a dictionary comes to: the first of these that one of its keys has."""


def paths() -> list[str]:
    """Every path of the catalogue, a dictionary before its keys."""
    found = [path for option in OPTIONS.values() for path in option.paths]
    for group in DICTIONARIES:
        found.insert(next(i for i, path in enumerate(found) if path.startswith(f"{group}.")), group)
    return found


def catalogue(device: str, plan: Plan | None = None) -> list[dict[str, Any]]:
    """One row per path of the catalogue: what an option is worth on a device, and what it is set to.

    An option that nobody set shows the default of its vocabulary, what setting it *by this path* to the value ``typical`` would come
    to, and under ``otherwise`` what else it can come to: status → how.
    """
    plan = plan or make(Settings(), Facts((device,)))
    rows: dict[str, dict[str, Any]] = {}
    for option in OPTIONS.values():
        for path in option.paths:
            rows[path] = _row(option, path, device, plan)
    for group in reversed(list(DICTIONARIES)):  # an inner one before the one around it
        rows[group] = _group(group, [row for path, row in rows.items() if path.startswith(f"{group}.")])
    return [rows[path] for path in paths()]


def _row(option: Option, path: str, device: str, plan: Plan) -> dict[str, Any]:
    rows = _seen_from(device, [row for row in plan.rows if row.option == option.name])
    found = min(rows, key=lambda r: (bool(r.winner), r.spelling != path), default=None)
    default = option.default_at(path)
    shown: Row | Outcome
    shown, switches, otherwise = (found, found.assignments, {}) if found else _unset(option, path, device)
    return {
        "path": path,
        "option": option.name,
        "aliases": [s for s in option.spellings if s != path],
        "value": found.value if found else None if default is UNSET else default,
        "origin": found.origin if found else "default",
        "typical": None if found else option.example,
        "status": shown.status,
        "otherwise": otherwise,
        "switches": sorted(switches),
        "assignments": found.as_dict()["switches"] if found else {},
        "reason": shown.reason,
    }


@lru_cache(None)
def _unset(option: Option, path: str, device: str) -> tuple[Row | Outcome, frozenset[str], dict[str, str]]:
    """What setting a typical value by one path comes to, the switches that its values move, and what else there is."""
    best = on_device(option, device)
    rows = [row for value in _values(option) for row in _by_path(option, path, value, device)]
    shown = rows[0] if rows else best
    others: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.status != shown.status:
            others.setdefault(row.status, {})[repr(row.value)] = None
    otherwise = {status: f"with {', '.join(values)}" for status, values in others.items()}
    if best.status not in ("inert", shown.status, *otherwise):
        is_elsewhere = device_of(path) not in (None, device)
        otherwise[best.status] = f"as {option.name}" if is_elsewhere else "with the options it needs"
    return shown, frozenset(switch for row in rows for switch in row.assignments), otherwise


def _by_path(option: Option, path: str, value: Any, device: str) -> list[Row]:
    try:
        plan = make(Settings([make_layer({path: value}, "reference")]), Facts((device,)))
    except OptionError:  # it is no value of this option
        return []
    return _seen_from(device, [row for row in plan.rows if row.spelling == path and row.option == option.name])


def _seen_from(device: str, rows: list[Row]) -> list[Row]:
    """The rows of one option as a device has them: what another one makes of it, since that is the target, is nothing to it."""
    own = [row for row in rows if row.device in (device, device_of(row.spelling))]
    reason = f"it has no meaning on {device}"
    return own or [replace(row, device=device, status="inert", assignments={}, reason=reason) for row in rows]


def _values(option: Option) -> list[Any]:
    """The values by which an option is known, a typical one first."""
    return [value for value in (typical(option), option.default, *option.choices, True, False) if value is not UNSET]


def typical(option: Option) -> Any:
    """The example of an option, as it can be set: a file that is there."""
    return str(CONFIGS / "files" / option.example) if option.names_file else option.example


def _group(group: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    status = next(s for s in WEAKEST if any(m["status"] == s for m in members))
    mine = [m["path"][len(group) + 1 :] for m in members if m["status"] == status]
    given = [m for m in members if m["origin"] != "default"]
    return {
        "path": group,
        "option": group,
        "aliases": [],
        "value": {m["path"][len(group) + 1 :]: m["value"] for m in given if m["path"] not in DICTIONARIES},
        "origin": "; ".join(dict.fromkeys(m["origin"] for m in given)) or "default",
        "typical": None,
        "status": status,
        "otherwise": {},
        "switches": sorted({switch for m in members for switch in m["switches"]}),
        "assignments": {},
        "reason": f"the keys with this status: {', '.join(mine)}",
    }


@lru_cache(None, typed=True)
def on_device(option: Option, device: str, value: Any = UNSET) -> Outcome:
    """What an option is worth on a device: the best that any of its values comes to, and all switches they move."""
    values = _values(option) if value is UNSET else [value]
    found = [o for o in (_outcome(option, v, device) for v in values) if o is not None]
    if not found:
        return Outcome("inert", {}, f"it has no meaning on {device}")
    asking = [o for o in found if not (o.status == "honoured" and o.shadowed)] or found
    best = next((o for o in asking if o.status in DONE), asking[0])
    switches = {switch: v for o in found for switch, v in o.assignments.items()}
    return Outcome(best.status, switches, best.reason)


BESIDE = (
    {
        "deterministic": "ON",
        "conv_fprop_algo": "performance",
        "matmul_algo": "performance",
        "precision_mode": "allow_mix_precision",
    },
    {"conv_fprop_algo": "gemm"},
    {"matmul_algo": "fp16x3"},
)
"""What our own options are a part of: each acts beside one of these."""


@lru_cache(None)
def _companions(name: str) -> Mapping[str, Any]:
    """What an option has no effect without, with typical values."""
    found: dict[str, Any] = {}
    names = [name]
    for one in names:  # what they need in turn joins them
        needed = [need.others for need in about(one, Needs) if need.option.name == one]
        for other in (others[0] for others in needed if not any(each.name in names for each in others)):
            names.append(other.name)
            found[other.name] = next(iter(other.values), typical(OPTIONS[other.name]))
    return found


def _outcome(option: Option, value: Any, device: str) -> Outcome | None:
    """What one value of an option comes to, beside those that it is a part of, and those that it needs."""
    found = None
    for beside in BESIDE if option.source == "msctx" else ({},):
        more = {**beside, **_companions(option.name)}
        if option.name == "default_device":
            more = {**more, "device_target": next(target for target, named in TARGETS.items() if named == device)}
        try:
            layer = make_layer({**more, option.name: value}, "reference")
        except OptionError:
            return None
        outcome = translate(On(device, Settings([layer]), Facts((device,)))).get(option.name)
        if found is None or (outcome is not None and outcome.status in DONE and found.status not in DONE):
            found = outcome
    return found


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
        "allowed": option.kind.allowed,
        "values": [
            {
                "value": choice,
                "means": getattr(option.kind, "meanings", {}).get(choice, ""),
                "also": [alias for alias, target in getattr(option.kind, "aliases", ()) if target is choice],
                "status": {device: on_device(option, device, choice).status for device in DEVICES},
            }
            for choice in option.choices
        ],
        "default": None if option.default is UNSET else option.default,
        "default_in_words": _default(option),
        "defaults": {group: None if v is UNSET else v for group, v in option.defaults.items()},
        "defaults_in_words": {group: "unset" if v is UNSET else _written(v) for group, v in option.defaults.items()},
        "devices": list(option.devices),
        "status": {
            device: {"status": outcome.status, "switches": sorted(outcome.assignments), "reason": outcome.reason}
            for device, outcome in ((device, on_device(option, device)) for device in DEVICES)
        },
        "interactions": [str(rule) for rule in about(option.name, Rule)],
        "keys": members(option.name),
        "replaced_by": option.replaced_by or None,
        "source": option.source,
        "example": option.example,
        "file": (CONFIGS / "files" / option.example).read_text(encoding="utf-8") if option.names_file else None,
    }


def _written(value: Any) -> str:
    return str(value) if isinstance(value, Size) or (isinstance(value, str) and value) else json.dumps(value)


def _default(option: Option) -> str:
    """The default as one would write it, and whose it is where that is not msctx."""
    if option.default is UNSET or option.source == "msctx":
        return "" if option.default is UNSET else _written(option.default)
    whose = "MindSpore" if option.source.startswith("mindspore") else "CANN"
    return f"{whose}'s is {_written(option.default)}; unset here: PyTorch is left alone"


def members(group: str) -> list[str]:
    """The options whose spelling stands below *group*: ``gpu_config``, ``session``, ``device_context.gpu`` …"""
    return [o.name for o in OPTIONS.values() if any(s.startswith(f"{group}.") for s in o.spellings)]
