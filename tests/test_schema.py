"""The schema that editors use says the same as msctx: what it takes is taken, and what msctx refuses for its form it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from samples import example as example_of

from msctx import schema
from msctx.errors import OptionError
from msctx.options import OPTIONS, UNSET, Option, make_layer
from msctx.options.kinds import Choice
from msctx.options.yaml_json_ini import load

ROOT = Path(__file__).parents[1]
FILE = ROOT / "configs" / "schema.json"
SHIPPED = sorted(path for folder in ("experiments", "presets") for path in (ROOT / "configs" / folder).rglob("*.y*ml"))
SCHEMA = schema.build()
VALIDATOR = Draft7Validator(SCHEMA)
SPELLINGS = [(spelling, option) for option in OPTIONS.values() for spelling in option.spellings]
NAME_OF = {spelling: option.name for spelling, option in SPELLINGS}


def takes(data: Any) -> bool:
    return VALIDATOR.is_valid(data)


def takes_option(spelling: str, value: Any) -> bool:
    return takes({"context": {spelling: value}})


def nested(path: str, value: Any) -> Any:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def written(option: Option) -> list[Any]:
    """Every value of an option that the reference names: allowed ones, other words for them, the default, the example."""
    kind = option.kind
    closed = kind.form.get("enum", [True, False]) if isinstance(kind, Choice) else []
    return [*closed, option.example, example_of(option), *([option.default] if option.default is not UNSET else [])]


def test_the_shipped_file_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == schema.dump(), "run: msctx schema > configs/schema.json"
    assert json.loads(schema.dump()) == SCHEMA


def inside(data: Any) -> list[dict[str, Any]]:
    found = [data] if isinstance(data, dict) else []
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [*found, *(below for value in values for below in inside(value))]


def test_every_reference_leads_somewhere_and_every_definition_is_used() -> None:
    used = {part["$ref"].removeprefix("#/definitions/") for part in inside(SCHEMA) if isinstance(part.get("$ref"), str)}
    assert used == set(SCHEMA["definitions"])


def test_patterns_are_such_as_javascript_reads_them() -> None:
    """Editors compile them with its flag u, under which a needless backslash is an error; `\\Z` and `(?P` are Python's own."""
    patterns = [part["pattern"] for part in inside(SCHEMA) if isinstance(part.get("pattern"), str)]
    patterns += [key for part in inside(SCHEMA) for key in part.get("patternProperties", {})]
    assert len(patterns) > 100
    for pattern in patterns:
        re.compile(pattern)
        assert set(re.findall(r"\\(.)", pattern)) <= set("sSwdx.^$*+?()[]{}|\\/"), pattern
        assert not re.search(r"\(\?[^:=!]", pattern), pattern


def test_everything_that_can_be_completed_has_a_text() -> None:
    for part in inside(SCHEMA):
        for key, below in part.get("properties", {}).items() if "additionalProperties" in part else ():
            target = SCHEMA["definitions"][below["$ref"].rpartition("/")[2]] if "$ref" in below else below
            assert target["description"].endswith("."), key
            assert "default" not in target, "completing `context:` would write it into the file"


def test_the_text_of_an_option_is_its_help_and_each_choice_has_its_meaning() -> None:
    for name, option in OPTIONS.items():
        found = SCHEMA["definitions"][name]
        assert found["description"] == option.help, name
        assert found["examples"] == [option.example], name
        assert found.get("deprecationMessage", "").endswith(f"use {option.replaced_by}." if option.replaced_by else ""), name
        if option.choices:
            (closed,) = [form for form in (found, *found.get("anyOf", ())) if "enum" in form]
            assert len(closed["enum"]) == len(closed["enumDescriptions"]), name
            meanings = list(getattr(option.kind, "meanings", {}).values())
            assert closed["enumDescriptions"][: len(meanings)] == meanings, name


def test_every_spelling_takes_every_value() -> None:
    for spelling, option in SPELLINGS:
        for value in written(option):
            assert takes_option(spelling, value), (spelling, value)
        assert takes({"context": nested(spelling, option.example)}), spelling


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_a_shipped_file_names_the_schema_and_fits_it(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert found, "the first line tells editors of the schema"
    assert (path.parent / found[1]).resolve() == FILE
    assert list(VALIDATOR.iter_errors(load(path).data)) == []


def test_what_msctx_takes_fits(tmp_path: Path) -> None:
    for case in map(json.loads, (ROOT / "tests" / "data" / "values.jsonl").read_text().splitlines()):
        if isinstance(case, dict):
            try:
                make_layer(case, "test")
            except OptionError:
                continue
            assert takes({"context": case}), case
    for data in ({}, {"context": None, "experiment": None, "record": None}, {"context": {"preset": "mine.yml"}}):
        assert takes(data)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"contxt": {}},
        {"deterministic": "ON"},
        {"context": {"determinstic": "ON"}},
        {"context": {"gpu_config.conv_allow_tf32": 7}},
        {"context": {"gpu_config": {"seed": 0}}},
        {"context": {"device_context": {"gpu.op_tuning.conv_fprop_algo": "fast"}}},
        {"context": {"env_config_path": {"rdr": {"enabel": True}}}},
        {"context": {"ge_options": {"global": {"ge.x": 1}}}},
        {"context": {"ge_options.session.ge.x": 1}},
        {"context": {"preset": "fats"}},
        {"context": {"max_device_memory": "4OGB"}},
        {"experiment": {"seed": -1}},
        {"experiment": {"file": "x"}},
    ],
    ids=repr,
)
def test_refuses(data: Any) -> None:
    assert not takes(data)


@settings(max_examples=60)
@given(data=st.data())
def test_it_knows_the_same_names(data: st.DataObject) -> None:
    """Keys of an option's spelling, in any nesting, cut short, doubled or with a letter more."""
    spelling = data.draw(st.sampled_from([spelling for spelling, option in SPELLINGS if not option.content]))
    parts = spelling.split(".")
    change = data.draw(st.sampled_from(["none", "none", "cut", "letter", "double"]))
    if change == "cut":
        parts = parts[1:]
    elif change == "letter":
        parts[data.draw(st.integers(0, len(parts) - 1))] += "s"
    elif change == "double":
        parts = [parts[0], *parts]
    assume(parts)
    value: Any = example_of(OPTIONS[NAME_OF[spelling]])
    while parts:
        count = data.draw(st.integers(1, len(parts)))
        value = {".".join(parts[-count:]): value}
        parts = parts[:-count]
    try:
        make_layer(value, "test")
        known = True
    except OptionError:
        known = False
    assert takes({"context": value}) is known
