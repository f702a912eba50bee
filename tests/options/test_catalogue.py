"""The catalogue of MindSpore's, CANN's and ATC's options, path by path: every value is taken at its path, every wrong one reported.

``catalogue.json`` holds the facts, made from the documents apart from the declarations: path, closed values, devices, CANN's key.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from samples import example, values

from msctx.errors import OptionError
from msctx.options import DEVICES, OPTIONS, UNSET, Option, Settings, find, make_layer
from msctx.options.option import device_of, rank_of
from msctx.reference import DICTIONARIES, catalogue, paths

CATALOGUE = json.loads((Path(__file__).parent / "catalogue.json").read_text())
ROWS = {row["path"]: row for row in CATALOGUE}
OPTION_PATHS = [path for path in ROWS if path not in DICTIONARIES]
CAPPED_HERE = "max_device_memory"
"""MindSpore ignores the cap on a CPU; msctx holds it there."""
CHOOSING = [option for option in OPTIONS.values() if option.choices]


def canonical(spelling: str, value: Any) -> Any:
    return make_layer({spelling: value}, "test").settings[spelling].value


def option_at(path: str) -> Option:
    option = find(path)
    assert option is not None
    return option


def refusal(name: str, value: Any) -> OptionError:
    with pytest.raises(OptionError) as error:
        make_layer({name: value}, "test")
    return error.value


def test_there_are_146_paths_and_each_has_one_row_dictionaries_before_their_keys() -> None:
    assert len(ROWS) == 146
    assert sorted(paths()) == sorted(ROWS)
    for device in DEVICES:
        assert [row["path"] for row in catalogue(device)] == paths()
    order = {path: i for i, path in enumerate(paths())}
    for group in DICTIONARIES:
        assert all(order[group] < order[p] for p in order if p.startswith(f"{group}."))


def test_the_devices_defaults_and_values_are_those_of_the_catalogue() -> None:
    for path in OPTION_PATHS:
        option, row = option_at(path), ROWS[path]
        if not option.replaced_by and option.name != CAPPED_HERE:
            assert set(option.devices) == set(row["devices"]), path
        if "default" in row:
            default, expected = option.default_at(path), row["default"]
            final = UNSET if expected == "unset" else expected if expected in (None, "") else canonical(path, expected)
            assert (type(default), default) == (type(final), final), path
        for value in row["values"] or ():
            found = canonical(path, value)
            assert canonical(path, found) == found, path
            assert not option.choices or found in option.choices, path


def test_every_spelling_takes_every_value_to_the_same_form_dotted_or_in_dictionaries() -> None:
    for option in OPTIONS.values():
        for value in values(option):
            assert len({repr(canonical(spelling, value)) for spelling in option.spellings}) == 1, (option.name, value)
        for spelling in option.spellings:
            nested: Any = example(option)
            for part in reversed(spelling.split(".")):
                nested = {part: nested}
            assert make_layer(nested, "test").settings[spelling].value == canonical(spelling, example(option))


def test_every_alias_leads_to_a_choice_and_every_choice_is_explained() -> None:
    for option in OPTIONS.values():
        for alias, choice in getattr(option.kind, "aliases", ()):
            assert canonical(option.name, alias) == choice
            assert choice in option.kind.choices
    for option in CHOOSING:
        meanings = getattr(option.kind, "meanings", {})
        assert set(meanings) == set(option.choices)
        assert all(3 <= len(text.split()) <= 16 and not text.endswith(".") for text in meanings.values())


def test_ge_options_reach_the_options_of_the_catalogue_as_text() -> None:
    options = [option for option in OPTIONS.values() if option.ge]
    assert {o.ge: o.name for o in options} == {row["ge"]: option_at(row["path"]).name for row in CATALOGUE if row["ge"]}
    assert len({o.ge for o in options}) == len(options), "no key means two options"
    values_as_text = {"ON": "1", "OFF": "0", True: "1", False: "0"}
    for option in options:
        for value in values(option):
            final = canonical(option.name, value)
            text = values_as_text.get(final, str(final)) if isinstance(final, bool | str) else str(final)
            if text:
                layer = make_layer({"ascend_config": {"ge_options": {"session": {option.ge: text}}}}, "test")
                found = layer.settings[f"ascend_config.ge_options.session.{option.ge}"]
                assert (found.option.name, found.value, found.device) == (option.name, final, "ascend")


def test_a_value_that_is_no_choice_is_told_with_the_choices_and_a_misspelt_one_is_recognised() -> None:
    for option in CHOOSING:
        for value in ["no such value", "", 99, -1, *(f"{choice}x" for choice in option.choices)]:
            (problem,) = refusal(option.name, value).problems
            assert all(str(choice) in problem.allowed for choice in option.choices)
        for choice in option.choices:
            if isinstance(choice, str) and len(choice) > 4:
                assert refusal(option.name, choice[:-2] + choice[-1] + choice[-2] + "_").problems[0].suggestion


def test_two_values_under_two_spellings_are_an_error_or_one_of_them_wins() -> None:
    for option in OPTIONS.values():
        forms = list({repr(f): f for f in (canonical(option.name, v) for v in values(option))}.values())
        for other in option.spellings[1:] if len(forms) > 1 else ():
            given = {option.name: forms[0], other: forms[1]}
            if (device_of(option.name), rank_of(option.name)) == (device_of(other), rank_of(other)):
                with pytest.raises(OptionError, match="they are one option"):
                    make_layer(given, "test")
            else:  # the spelling of higher rank wins where both speak
                winner = max((option.name, other), key=rank_of)
                device = device_of(winner) or device_of(other) or option.devices[0]
                found = Settings([make_layer(given, "test")]).get(option.name, device)
                assert found is not None
                assert found.spelling == winner
