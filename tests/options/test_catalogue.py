"""The catalogue of MindSpore's, CANN's and ATC's options, path by path: every value is taken at its path, every wrong one is told.

``catalogue.json`` holds the facts, made from the documents apart from the declarations: path, closed values, devices, CANN's key.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from samples import example, values

import msctx
from msctx.effects import Facts, Outcome, Want, translate
from msctx.errors import OptionError
from msctx.options import DEVICES, OPTIONS, Option, Settings, find, make_layer
from msctx.options.option import OURS, device_of, rank_of
from msctx.plan import DONE, FAILING
from msctx.reference import DICTIONARIES, catalogue, describe, on_device, paths

CATALOGUE = json.loads((Path(__file__).parent / "catalogue.json").read_text())
ROWS = {row["path"]: row for row in CATALOGUE}
OPTION_PATHS = [path for path in ROWS if path not in DICTIONARIES]
CAPPED_HERE = "max_device_memory"
"""MindSpore ignores the cap on a CPU; msctx will hold it there (semantics 26)."""


def canonical(spelling: str, value: Any) -> Any:
    return make_layer({spelling: value}, "test").settings[spelling].value


def option_at(path: str) -> Option:
    option = find(path)
    assert option is not None
    return option


# --- the paths --------------------------------------------------------------------------------------------------------


def test_there_are_146_paths_and_each_has_one_row() -> None:
    assert len(ROWS) == 146
    assert sorted(paths()) == sorted(ROWS)
    for device in DEVICES:
        assert [row["path"] for row in catalogue(device)] == paths()


def test_a_dictionary_comes_before_its_keys() -> None:
    order = {path: i for i, path in enumerate(paths())}
    for group in DICTIONARIES:
        assert all(order[group] < order[p] for p in order if p.startswith(f"{group}."))


@pytest.mark.parametrize("path", OPTION_PATHS)
def test_the_devices_are_those_of_the_catalogue(path: str) -> None:
    option = option_at(path)
    if not option.replaced_by and option.name != CAPPED_HERE:
        assert set(option.devices) == set(ROWS[path]["devices"])


def test_ge_keys_are_those_of_the_catalogue() -> None:
    mine = {o.ge: o.name for o in OPTIONS.values() if o.ge}
    theirs = {row["ge"]: option_at(row["path"]).name for row in CATALOGUE if row["ge"]}
    assert mine == theirs
    assert len(mine) == sum(1 for o in OPTIONS.values() if o.ge), "no key means two options"


# --- every value, in every vocabulary ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in OPTION_PATHS if ROWS[path]["values"]])
def test_every_value_of_the_catalogue_is_taken_at_its_path(path: str) -> None:
    option = option_at(path)
    for value in ROWS[path]["values"]:
        found = canonical(path, value)
        assert canonical(path, found) == found
        assert not option.choices or found in option.choices


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_spelling_takes_every_value_to_the_same_form(option: Option) -> None:
    for value in values(option):
        assert len({repr(canonical(spelling, value)) for spelling in option.spellings}) == 1


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_a_dotted_name_and_dictionaries_are_the_same(option: Option) -> None:
    for spelling in option.spellings:
        nested: Any = example(option)
        for part in reversed(spelling.split(".")):
            nested = {part: nested}
        assert make_layer(nested, "test").settings[spelling].value == canonical(spelling, example(option))


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_alias_leads_to_a_choice(option: Option) -> None:
    for alias, choice in getattr(option.kind, "aliases", {}).items():
        assert canonical(option.name, alias) == choice
        assert choice in option.choices


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.choices], ids=lambda o: o.name)
def test_every_choice_is_explained(option: Option) -> None:
    meanings = option.kind.meanings  # type: ignore[union-attr]
    assert set(meanings) == set(option.choices)
    assert all(3 <= len(text.split()) <= 16 and not text.endswith(".") for text in meanings.values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_value_is_translated_on_every_device(option: Option, device: str) -> None:
    for value in values(option):
        settings = Settings([make_layer({option.name: value}, "test")])
        setting = settings.get(option.name)
        assert setting is not None
        outcome = translate(Want(option, setting.value, device, settings, Facts.everything()))
        if outcome is None:  # it speaks of the target alone
            assert option.name in ("device_target", "device_id", "default_device")
        else:
            assert outcome.status in (*DONE, *FAILING)
            assert outcome.reason or outcome.status == "honoured"


GE = [o for o in OPTIONS.values() if o.ge]


@pytest.mark.parametrize("option", GE, ids=lambda o: o.ge)
def test_ge_options_reach_the_option_as_text(option: Option) -> None:
    values_as_text = {"ON": "1", "OFF": "0", True: "1", False: "0"}
    for value in values(option):
        final = canonical(option.name, value)
        text = values_as_text.get(final, str(final)) if isinstance(final, bool | str) else str(final)
        if not text:
            continue
        layer = make_layer({"ascend_config": {"ge_options": {"session": {option.ge: text}}}}, "test")
        found = layer.settings[f"ascend_config.ge_options.session.{option.ge}"]
        assert (found.option.name, found.value, found.device) == (option.name, final, "ascend")


@pytest.mark.parametrize(("text", "value"), [("2", "auto"), ("1", "true"), ("0", "false")])
def test_ge_options_in_words_of_their_own(text: str, value: str) -> None:
    layer = make_layer({"ge_options.session": {"ge.jit_compile": text}}, "test")
    assert layer.settings["ge_options.session.ge.jit_compile"].value == value


def test_a_file_named_in_ge_options_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('{"black-list": {"to-add": ["MatMul"]}}')
    given = {"ge_options.session": {"ge.exec.modify_mixlist": str(path)}}
    found = make_layer(given, "test").settings["ge_options.session.ge.exec.modify_mixlist"]
    assert found.content == {"black-list": {"to-add": ["MatMul"]}}
    path.unlink()
    with pytest.raises(OptionError, match=r"ge\.exec\.modify_mixlist: .* cannot be read"):
        make_layer(given, "test")


def test_ge_options_hand_on_what_is_no_option_here() -> None:
    layer = make_layer({"ge_options": {"global": {"ge.someNewKey": "7"}}}, "test")
    assert {k: s.value for k, s in layer.settings.items()} == {"ge_options.global": {"ge.someNewKey": "7"}}


def test_a_wrong_value_in_ge_options_is_told_with_its_key() -> None:
    with pytest.raises(OptionError) as error:
        make_layer({"ascend_config": {"ge_options": {"session": {"ge.exec.precision_mode": "force_fp61"}}}}, "test")
    (problem,) = error.value.problems
    assert problem.path == "ascend_config.ge_options.session.ge.exec.precision_mode"
    assert problem.suggestion == "'force_fp16'"


# --- what is wrong ----------------------------------------------------------------------------------------------------

WRONG = (None, 0.5, float("nan"), float("inf"), b"ON", object(), [[]], [None], {"no": "such key"}, 10**5000, -(10**400), 1j)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_a_value_of_a_wrong_type_is_told_and_changes_nothing(option: Option) -> None:
    before = msctx.get_context()
    for spelling in option.spellings:
        for value in WRONG:
            if (value is None and option.default is None) or (isinstance(value, dict) and option.name.startswith("ge_options")):
                continue  # null means none here; any text is a key of CANN's
            with pytest.raises(OptionError) as error:
                msctx.set_context(**{spelling: value})
            assert error.value.problems[0].path.startswith(spelling)
            assert str(error.value).endswith("nothing was changed.")
            assert len(str(error.value)) < 3000
    assert msctx.get_context() == before


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.choices], ids=lambda o: o.name)
def test_a_value_that_is_no_choice_is_told_with_the_choices(option: Option) -> None:
    wrong: list[Any] = ["no such value", "", 99, -1, *(f"{choice}x" for choice in option.choices)]
    wrong += [c.swapcase() for c in option.choices if isinstance(c, str) and c.swapcase() != c]
    for value in wrong:
        with pytest.raises(OptionError) as error:
            make_layer({option.name: value}, "test")
        (problem,) = error.value.problems
        assert all(str(choice) in problem.allowed for choice in option.choices)


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.choices], ids=lambda o: o.name)
def test_a_misspelt_choice_is_recognised(option: Option) -> None:
    for choice in option.choices:
        if isinstance(choice, str) and len(choice) > 4:
            with pytest.raises(OptionError) as error:
                make_layer({option.name: choice[:-2] + choice[-1] + choice[-2] + "_"}, "test")
            assert error.value.problems[0].suggestion


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_two_values_under_two_spellings_are_an_error_or_one_of_them_wins(option: Option) -> None:
    forms = list({repr(f): f for f in (canonical(option.name, v) for v in values(option))}.values())
    if len(forms) < 2:
        return
    for other in option.spellings[1:]:
        given = {option.name: forms[0], other: forms[1]}
        if (device_of(option.name), rank_of(option.name)) == (device_of(other), rank_of(other)):
            with pytest.raises(OptionError, match="they are one option"):
                make_layer(given, "test")
        else:  # only a spelling of another rank, or for one device, may differ
            assert set(make_layer(given, "test").settings) >= set(given)


# --- the reference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_every_row_of_the_catalogue_is_whole(device: str) -> None:
    for row in catalogue(device):
        assert set(row) == {
            "path", "option", "aliases", "value", "origin", "status", "switches", "assignments", "reason",
        }  # fmt: skip
        assert row["origin"] == "default"
        assert row["assignments"] == {}
        assert row["status"] in (*DONE, *FAILING)
        assert row["reason"] or row["status"] == "honoured"
        assert json.loads(json.dumps(row)) == row


def test_every_row_shows_the_default_of_its_vocabulary() -> None:
    rows = {row["path"]: row["value"] for row in catalogue("ascend")}
    assert rows["ascend_config.atomic_clean_policy"] == 1
    assert rows["session.atomic_clean_policy"] == 0
    assert rows["atc.op_select_implmode"] == "high_performance"
    assert rows["session.op_select_implmode"] is None


def test_what_is_set_shows_in_its_rows() -> None:
    options = {"deterministic": "ON", "gpu_config": {"conv_allow_tf32": False}, "graph_kernel_flags": "--opt_level=1"}
    rows = {row["path"]: row for row in catalogue("cuda", Settings([make_layer(options, "mine")]))}
    assert (rows["deterministic"]["value"], rows["deterministic"]["origin"]) == ("ON", "mine")
    assert rows["deterministic"]["assignments"]["torch.cudnn.deterministic"] is True
    assert rows["session.deterministic"]["value"] == "ON"
    assert rows["gpu_config"]["value"] == {"conv_allow_tf32": False}
    assert rows["graph_kernel_flags.opt_level"]["value"] == 1
    assert rows["mode"]["origin"] == "default"


def test_a_group_for_one_device_earns_nothing_on_another() -> None:
    rows = {r["path"]: r for r in catalogue("cpu", Settings([make_layer({"gpu_config": {"conv_allow_tf32": False}}, "x")]))}
    assert rows["gpu_config.conv_allow_tf32"]["status"] == "refused"
    assert rows["gpu_config.conv_allow_tf32"]["reason"] == "no CUDA device"


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_every_option_has_its_page(option: Option) -> None:
    page = describe(option)
    assert json.loads(json.dumps(page)) == page
    assert [v["value"] for v in page["values"]] == list(option.choices)
    for device in DEVICES:
        found = page["status"][device]
        assert found["status"] in (*DONE, *FAILING)
        expected = option.devices if not option.replaced_by else ()
        assert (found["status"] != "inert") is (device in expected) or option.name in ("device_target", "device_id")
        assert isinstance(on_device(option, device), Outcome)


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.names_file], ids=lambda o: o.name)
def test_an_option_that_names_a_file_shows_one(option: Option) -> None:
    text = describe(option)["file"]
    assert option.format is not None
    parsed = option.format.parse(text, option.example)
    assert parsed.problems == []
    assert parsed.data


def test_groups_of_our_own_are_no_paths() -> None:
    assert not any(path.startswith(OURS) for path in paths())
