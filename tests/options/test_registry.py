"""All options: each declaration is sound, spellings are found, files are read where they stand. Messages are in ``data/``."""

import ast
import enum
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import example

from msctx.errors import MOST, Diagnostic, OptionError
from msctx.options import DEVICES, OPTIONS, UNSET, Layer, find, make_layer, option_of
from msctx.options.kinds import Size
from msctx.options.option import GROUPS
from msctx.options.registry import named
from msctx.options.yaml_json_ini import load
from msctx.themes import THEMES

SPELLINGS = [spelling for option in OPTIONS.values() for spelling in option.spellings]


def value_of(spelling: str, value: object) -> object:
    return make_layer({spelling: value}, "test").settings[spelling].value


def problems_of(**values: object) -> tuple[Diagnostic, ...]:
    with pytest.raises(OptionError) as error:
        make_layer(values, "test")
    return error.value.problems


def test_declarations_are_complete_and_their_values_are_taken_in_their_final_form() -> None:
    for name, option in OPTIONS.items():
        once = value_of(name, example(option))
        assert value_of(name, once) == once, name
        assert json.loads(json.dumps(once)) == once, f"{name}: values are plain data"
        if option.default is not UNSET:
            found = value_of(name, option.default)
            assert (type(found), found) == (type(option.default), option.default), name
            assert once != option.default or name == "enable_reduce_precision", f"{name}: the example shows the default"
        assert option.help.endswith("."), name
        assert set() < set(option.devices) <= set(DEVICES), name
        assert set(option.groups) <= {*GROUPS, "session", "atc"}, name


def test_every_spelling_is_unique_and_leads_to_its_option() -> None:
    assert len(SPELLINGS) == len(set(SPELLINGS))
    assert len(OPTIONS) == sum(len(theme.OPTIONS) for theme in THEMES), "no name is declared twice"
    for option in OPTIONS.values():
        for spelling in option.spellings:
            assert find(spelling) is option_of(spelling) is option
    assert find("no_such_option") is find("gpu_config") is None


def test_flat_names_that_two_vocabularies_share_mean_set_contexts() -> None:
    for name in ("enable_dump", "variable_memory_max_size"):
        assert option_of(name).source.startswith("mindspore")
        assert not option_of(f"session.{name}").source.startswith("mindspore")


def test_any_name_of_an_option_finds_it() -> None:
    for name in ("deterministic", "session.deterministic", "ge.deterministic", "MSCTX_DETERMINISTIC", "set_deterministic"):
        assert named(name) is OPTIONS["deterministic"]
    assert named("MSCTX_GPU_CONFIG__CONV_FPROP_ALGO") is OPTIONS["conv_fprop_algo"]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("op_timeout", 60.0), ("save_graphs", "2"), ("dump_path", 1), ("deterministic", "on"), ("max_device_memory", 4)],
)
def test_a_suggested_value_can_be_written_as_it_stands(name: str, wrong: object) -> None:
    (problem,) = problems_of(**{name: wrong})
    value_of(name, ast.literal_eval(problem.suggestion))


class OnOff(str, enum.Enum):
    ON = "ON"

    def __str__(self) -> str:
        return "not this"


def test_paths_enumerations_and_numbers_of_numpy_are_plain_values() -> None:
    given: list[tuple[str, Any, Any]] = [
        *(("deterministic", OnOff.ON, "ON"), ("dump_layer", OnOff.ON, "ON"), ("deterministic", np.True_, "ON")),
        *(("save_graphs_path", Path("graphs") / "x", str(Path("graphs") / "x")), ("seed", np.int8(7), 7)),
        *(("max_device_memory", np.int64(2**30), Size(2**30)), ("conv_max_error", np.float32(0.5), 0.5)),
    ]
    for name, value, plain in given:
        found = value_of(name, value)
        assert (type(found), found) == (type(plain), plain)
    for wrong in (np.bool_(True), np.float64(3.5), np.array([3])):
        problems_of(seed=wrong)


def test_a_relative_path_in_a_file_is_looked_for_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env.json").write_text('{"rdr": {"enable": true}}')
    (tmp_path / "x.yaml").write_text("context:\n  env_config_path: env.json\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    document = load("../x.yaml")
    layer = make_layer(document.data["context"], "../x.yaml", document.under("context"))
    assert layer.settings["env_config_path"].value == str(Path("..") / "env.json")
    assert layer.settings["env_config_path.rdr.enable"].value is True


def test_the_keys_of_a_file_are_options_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_text('{"rdr": {"enable": true,\n  "mode": 2}}')
    layer = make_layer({"env_config_path": str(path)}, "test")
    assert {k: (s.value, s.via, s.origin) for k, s in layer.settings.items()} == {
        "env_config_path": (str(path), "", "test"),
        "env_config_path.rdr.enable": (True, "env_config_path", f"{path}:1:20"),
        "env_config_path.rdr.mode": (2, "env_config_path", f"{path}:2:11"),
    }
    given = {"env_config_path": str(path), "env_config_path.rdr.mode": 1}
    for values in (given, dict(reversed(given.items()))):
        assert make_layer(values, "test").settings["env_config_path.rdr.mode"].value == 1, "what stands beside a file wins"


def test_another_content_is_another_plan_and_a_layer_pickles_whole(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('{"black-list": {"to-add": ["MatMul"]}}')
    layer = make_layer({"modify_mixlist": str(path), "deterministic": "ON"}, "test")
    path.write_text('{"white-list": {"to-add": ["MatMul"]}}')
    assert make_layer({"modify_mixlist": str(path), "deterministic": "ON"}, "test").key != layer.key
    path.unlink()
    again: Layer = pickle.loads(pickle.dumps(layer))
    assert again.key == layer.key
    assert again.settings["deterministic"].option is OPTIONS["deterministic"]


def test_of_many_unknown_keys_the_first_are_shown() -> None:
    with pytest.raises(OptionError) as error:
        make_layer({"gpu_config": {f"unkown_{i}": 1 for i in range(3 * MOST)}}, "test")
    assert str(error.value).count("gpu_config has no such key") == MOST
    assert str(error.value).endswith(f"the first {MOST} problems; nothing was changed.")
