"""Layers, where they come from, and what MSCTX_PLAN hands on: the same values, origins and plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from msctx.context.plans import explain
from msctx.errors import FileError, OptionError
from msctx.options import OPTIONS, Layer, Settings, layer_sources, make_layer
from msctx.options.kinds import check
from msctx.options.layer_sources import RESERVED, environment_layers, layer_of, presets


def values(layer: Layer) -> dict[str, object]:
    return {k: s.value for k, s in layer.settings.items()}


def test_what_an_inner_layer_switches_off_takes_nobodys_place() -> None:
    laid = [make_layer(o, "a") for o in ({"compile_dynamic_mode": True}, {"dynamic_input": True}, {"dynamic_input": False})]
    found = [Settings(laid[:count]).get("compile_dynamic_mode", "cpu") for count in (1, 2, 3)]
    assert [setting is not None for setting in found] == [True, False, True]


def test_keys_tell_values_and_origins_apart() -> None:
    def key(**options: object) -> object:
        return make_layer(options, "a").key

    assert key(seed=1) == key(seed=1)
    assert key(seed=1) != key(seed=2)
    assert key(save_graphs=1) != key(debug_level=1)
    assert key(seed=1) != make_layer({"seed": 1}, "b").key


def test_presets_are_shipped_and_sound() -> None:
    assert set(presets()) == {"debug", "fast", "reproducible"}
    for name in presets():
        layer = layer_of({"preset": name}, "test")
        assert layer.settings
        assert {s.origin for s in layer.settings.values()} == {f"preset {name}"}
    assert values(layer_of({"preset": "reproducible"}, "test"))["deterministic"] == "ON"


def test_a_preset_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("context:\n  seed: 7\n  gpu_config:\n    conv_allow_tf32: off\nexperiment: {}\naxes: {}\n")
    layer = layer_of({"preset": str(path)}, "test")
    assert values(layer) == {"seed": 7, "gpu_config.conv_allow_tf32": False}
    assert layer.settings["seed"].origin == f"{path}:2:9"


@pytest.mark.parametrize("preset", ["reproducable", "", 5, True, ["fast"]])
def test_an_unknown_preset(preset: object) -> None:
    with pytest.raises(OptionError) as error:
        layer_of({"preset": preset}, "test")
    (problem,) = error.value.problems
    assert (problem.path, problem.where) == ("preset", "test")
    assert "reproducible" in problem.allowed
    assert problem.suggestion == {"reproducable": "'reproducible'", "['fast']": "'fast'"}.get(str(preset), "")


def test_problems_in_a_file_of_presets(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    with pytest.raises(FileError, match="No such file"):
        layer_of({"preset": str(path)}, "test")
    path.write_text("context:\n  sed: 7\n  seed: 1\n  seed: 2\n")
    with pytest.raises(OptionError) as error:
        layer_of({"preset": str(path)}, "test")
    assert [str(problem.mark) for problem in error.value.problems] == [f"{path}:2:3", f"{path}:4:3"]
    for text in ("seed: 7\n", "[1]\n", "", "context: 5\n"):
        path.write_text(text)
        with pytest.raises(OptionError, match="context"):
            layer_of({"preset": str(path)}, "test")


def test_variables_are_options() -> None:
    layers = environment_layers(
        {
            "MSCTX_DETERMINISTIC": "ON",
            "MSCTX_GPU_CONFIG__CONV_ALLOW_TF32": "off",
            "MSCTX_MAX_DEVICE_MEMORY": "4GB",
            "MSCTX_SESSION__ENABLE_DUMP": "true",
            "MSCTX_AOE_MODE": "2",
            "PATH": "/bin",
            "OTHER_MSCTX_SEED": "x",
        }
    )
    assert list(layers) == ["environment"]
    assert values(layers["environment"]) == {
        "deterministic": "ON",
        "gpu_config.conv_allow_tf32": False,
        "max_device_memory": 4 * 2**30,
        "session.enable_dump": True,
        "aoe_mode": "2",
    }
    assert layers["environment"].settings["deterministic"].origin == "environment MSCTX_DETERMINISTIC"


@pytest.mark.parametrize("name", ["MSCTX_MODE", "MSCTX_SEED", "MSCTX_GPU_CONFIG__CONV_ALLOW_TF32"])
def test_an_empty_variable_is_to_be_unset(name: str) -> None:
    with pytest.raises(OptionError, match=rf"environment  {name}: is empty; unset it, or give it a value"):
        environment_layers({name: ""})


def test_reserved_variables_are_no_options() -> None:
    assert {"MSCTX_CACHE_DIR", "MSCTX_ISA", "MSCTX_PLAN"} == RESERVED
    assert environment_layers(dict.fromkeys(RESERVED - {"MSCTX_PLAN"}, "anything")) == {}


def test_all_problems_of_the_environment_at_once() -> None:
    wrong = {"GPU_CONFIG_CONV_ALLOW_TF32": "true", "OP_TIMEOUT": "-1", "SEED": "010", "PRESET": "fst", "XYZZY": "1"}
    wrong |= {"DETERMINSTIC": "ON", "DETERMINISTIC": ""}
    with pytest.raises(OptionError) as error:
        environment_layers({f"MSCTX_{name}": value for name, value in wrong.items()})
    found = {
        (p.where + " " + p.path).replace("environment ", "").split()[0].removeprefix("MSCTX_"): p for p in error.value.problems
    }
    assert set(found) == set(wrong)
    assert found["DETERMINSTIC"].suggestion == "deterministic"
    assert found["GPU_CONFIG_CONV_ALLOW_TF32"].suggestion == "gpu_config.conv_allow_tf32"
    assert "8 in YAML 1.1" in found["SEED"].text
    assert found["PRESET"].suggestion == "'fast'"


def test_canns_keys_in_the_environment() -> None:
    found = environment_layers({"MSCTX_GE_OPTIONS__SESSION": '{ge.deterministic: "1"}'})["environment"]
    assert found.settings["ge_options.session.ge.deterministic"].value == "ON"
    with pytest.raises(OptionError):
        environment_layers({"MSCTX_GE_OPTIONS__SESSION": "{ge.deterministic"})


def test_a_group_in_the_environment_is_a_dictionary() -> None:
    found = environment_layers({"MSCTX_GPU_CONFIG": "{conv_allow_tf32: false}"})["environment"]
    assert values(found) == {"gpu_config.conv_allow_tf32": False}
    with pytest.raises(OptionError, match="environment MSCTX_GPU_CONFIG  gpu_config: needs a dictionary of options"):
        environment_layers({"MSCTX_GPU_CONFIG": "false"})


EXAMPLES = [(o.name, o.example) for o in OPTIONS.values() if o.example is not None and not check(o.kind, o.example)[1]]
EXAMPLES.append(("max_device_memory", "1KB"))


def through(layer: Layer) -> Layer:
    return layer_sources.carried_layer({layer_sources.PLAN: layer_sources.pack(layer)})


def test_every_option_comes_out_as_it_was() -> None:
    count = 0
    for name, value in EXAMPLES:
        try:
            layer = make_layer({name: value}, "train.yaml:3:4")
        except OptionError:  # its example names a file
            continue
        found, count = through(layer), count + 1
        assert [*found.settings] == [*layer.settings]
        for spelling, setting in layer.settings.items():
            if not (setting.option.names_file or setting.option.is_output):
                assert found.settings[spelling].value == setting.value, spelling
            assert found.settings[spelling].origin == setting.origin, spelling
            assert found.settings[spelling].content == setting.content, spelling
    assert count > 150


def test_a_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is absolute, and its content is what it was: the child may be elsewhere, or the file another."""
    monkeypatch.chdir(tmp_path)
    Path("dtypes.cfg").write_text("fc::InputDtype:bfloat16\n")
    layer = make_layer({"customize_dtypes": "dtypes.cfg"}, "here")
    text = layer_sources.pack(layer)
    Path("dtypes.cfg").unlink()
    found = layer_sources.carried_layer({layer_sources.PLAN: text})
    assert found.settings["customize_dtypes"].value == str(tmp_path / "dtypes.cfg")
    assert [row.status for row in explain(Settings([found])).rows] == [row.status for row in explain(Settings([layer])).rows]


def test_it_lies_under_the_variables_of_the_child() -> None:
    layer = make_layer({"deterministic": "ON", "runtime_num_threads": 1}, "command line")
    found = environment_layers({layer_sources.PLAN: layer_sources.pack(layer), "MSCTX_DETERMINISTIC": "OFF"})
    assert {s.spelling: (s.value, s.origin) for s in found["environment"].settings.values()} == {
        "deterministic": ("OFF", "environment MSCTX_DETERMINISTIC"),
        "runtime_num_threads": (1, "command line"),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("deterministic=ON", "is not what `msctx exec`"),
        ("[]", "is not what"),
        ('{"version": "0.0.1"}', "is not what `msctx exec` of msctx"),
    ],
)
def test_what_is_not_ours_is_refused(text: str, expected: str | None) -> None:
    if expected is None:
        assert not layer_sources.carried_layer({layer_sources.PLAN: text}).settings
        return
    with pytest.raises(OptionError, match="MSCTX_PLAN") as caught:
        environment_layers({layer_sources.PLAN: text})
    assert expected in str(caught.value)
