"""What each value of each option does on each device, and what options do beside each other: golden files that a person has read.

``UPDATE_GOLDEN=1 pytest tests/test_plans.py`` writes ``data/plans-*.txt`` anew; read the difference before you commit it.
A case of ``data/plan_cases.jsonl`` is the layers of options, the outermost first, the devices, and facts about the machine.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import values

from msctx.options import DEVICES, OPTIONS, Settings, make_layer
from msctx.plan import make
from msctx.shipped import CONFIGS
from msctx.themes import Facts

DATA = Path(__file__).parent / "data"
CASES = [json.loads(line.replace("CONFIGS", f"{CONFIGS}")) for line in (DATA / "plan_cases.jsonl").read_text().splitlines()]


def said(value: Any) -> Any:
    """A value of a switch without those of its parts that say nothing."""
    return {key: part for key, part in value.items() if part not in (None, False, [], {})} if isinstance(value, dict) else value


def written(layers: list[dict[str, Any]], facts: Facts) -> str:
    """A plan as text: each row with its status and reason, and the switches that it sets."""
    plan = make(Settings([make_layer(options, f"layer {place}") for place, options in enumerate(layers)]), facts)
    found = ["> " + " | ".join(json.dumps(options) for options in layers)]
    for row in plan.rows:
        assert len(row.reason.partition(". ")[0].split()) <= 15, f"a long cause: {row.reason}"
        by = f" (overridden by {row.winner})" * bool(row.winner)
        found.append(f"  {row.device} {row.spelling}: {row.status}{by}{': ' * bool(row.reason)}{row.reason}")
        found += [f"    {switch} = {json.dumps(said(to), default=repr)}" for switch, to in row.as_dict()["switches"].items()]
    return "\n".join(found).replace(f"{CONFIGS}", "CONFIGS").replace(os.getcwd(), "HERE")


def every_value(device: str) -> Iterator[str]:
    for name, option in OPTIONS.items():
        for value in {repr(value): value for value in values(option) if value is not None}.values():
            if not (option.replaced_by or (option.is_output and not value)):
                yield written([{name: value}], Facts((device,)))


def in_place(plans: Iterator[str], golden: str) -> list[str]:
    """Plans in the order of the golden file, whatever the order in which options are declared; new ones at the end."""
    places = {plan.partition("\n")[0]: place for place, plan in enumerate(golden.split("\n\n"))}
    return sorted(plans, key=lambda plan: places.get(plan.partition("\n")[0], len(places)))


def every_case() -> Iterator[str]:
    for layers, on, facts in CASES:
        devices = (on,) if isinstance(on, str) else tuple(on)
        known = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}
        yield f"# {' '.join(devices)} {json.dumps(facts)}\n" + written(layers, Facts(devices=devices, **known))


@pytest.mark.parametrize("name", [*DEVICES, "rules"])
def test_plans_are_those_that_were_read(name: str) -> None:
    golden = DATA / f"plans-{name}.txt"
    plans = [*every_case()] if name == "rules" else in_place(every_value(name), golden.read_text())
    found = "\n\n".join(plans) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found)
    expected = golden.read_text()
    for ours, theirs in zip(found.split("\n\n"), expected.split("\n\n"), strict=False):
        assert ours == theirs
    assert found == expected
