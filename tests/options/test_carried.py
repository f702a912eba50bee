"""MSCTX_PLAN: what is packed comes out with the same values, origins and plan, and what is not ours is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msctx.context.base import explain
from msctx.errors import OptionError
from msctx.options import OPTIONS, Layer, Settings, carried, make_layer
from msctx.options.layers import environment_layers
from msctx.options.validation import check

EXAMPLES = [(o.name, o.example) for o in OPTIONS.values() if o.example is not None and not check(o.type, o.example)[1]]
EXAMPLES.append(("max_device_memory", "1KB"))


def through(layer: Layer) -> Layer:
    return carried.layer_of({carried.VARIABLE: carried.pack(layer)})


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
    text = carried.pack(layer)
    Path("dtypes.cfg").unlink()
    found = carried.layer_of({carried.VARIABLE: text})
    assert found.settings["customize_dtypes"].value == str(tmp_path / "dtypes.cfg")
    assert [row.status for row in explain(Settings([found])).rows] == [row.status for row in explain(Settings([layer])).rows]


def test_it_lies_under_the_variables_of_the_child() -> None:
    layer = make_layer({"deterministic": "ON", "runtime_num_threads": 1}, "command line")
    found = environment_layers({carried.VARIABLE: carried.pack(layer), "MSCTX_DETERMINISTIC": "OFF"})
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
        ('{"version": "0.0.1"}', "is of msctx 0.0.1; this process has msctx"),
        ('{"version": VERSION, "settings": [{"option": "no_such"}]}', "is not what"),
        ('{"version": VERSION, "settings": [SETTING]}', "deterministic: 'maybe' is not"),
    ],
)
def test_what_is_not_ours_is_refused(text: str, expected: str | None) -> None:
    setting = {
        "option": "deterministic",
        "spelling": "deterministic",
        "value": "maybe",
        "origin": "",
        "content": None,
        "via": "",
    }
    text = text.replace("VERSION", json.dumps(carried.__version__)).replace("SETTING", json.dumps(setting))
    if expected is None:
        assert not carried.layer_of({carried.VARIABLE: text}).settings
        return
    with pytest.raises(OptionError, match="MSCTX_PLAN") as caught:
        environment_layers({carried.VARIABLE: text})
    assert expected in str(caught.value)


def test_what_no_variable_can_hold_is_refused() -> None:
    layer = make_layer({"print_file_path": "x" * 130_000}, "here")
    with pytest.raises(OptionError, match="print_file_path: is too long"):
        carried.pack(layer)
