"""Keys of ms.set_context that name files or hold texts of a form of their own."""

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

import msctx
import msctx.mindspore as ms
from msctx.errors import MsctxWarning, StrictError
from msctx.mindspore.errors import OptionPathError


def test_save_graphs_path_is_made_and_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ms.get_context("save_graphs_path") == "."
    ms.set_context(save_graphs_path="a/b")
    assert ms.get_context("save_graphs_path") == os.path.realpath(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    ms.set_context(save_graphs_path="a")
    assert ms.get_context("save_graphs_path") == os.path.realpath(tmp_path / "a")


@pytest.mark.parametrize(
    ("value", "kind"), [("", ValueError), ("  ", ValueError), (1, TypeError), (None, ValueError), ("\0", ValueError)]
)
def test_save_graphs_path_must_be_a_path(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="save_graphs_path"):
        ms.set_context(save_graphs_path=value)


def test_save_graphs_path_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be made"):
        ms.set_context(save_graphs_path=str(tmp_path / "file" / "graphs"))
    assert not msctx.current().settings


def test_print_file_path(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    assert ms.get_context("print_file_path") == ""
    with pytest.raises(OSError, match="is a directory") as caught:
        ms.set_context(print_file_path=str(tmp_path))
    assert type(caught.value) is OptionPathError
    path = tmp_path / "prints.pb"
    ms.set_context(print_file_path=str(path))
    assert ms.get_context("print_file_path") == os.path.realpath(path)
    path.write_text("")
    ms.set_context(print_file_path=str(path))
    assert ms.get_context("print_file_path").startswith(f"{os.path.realpath(path)}.")
    for wrong in (1, None):
        with pytest.raises(TypeError):
            ms.set_context(print_file_path=wrong)


def test_print_file_path_when_every_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 7.5)
    for name in ("prints", "prints.7"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"prints\.7"):
        ms.set_context(device_target="Ascend", print_file_path=str(tmp_path / "prints"))


def test_env_config_path(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    assert ms.get_context("env_config_path") == ""
    with pytest.raises(ValueError, match="there is no file"):
        ms.set_context(env_config_path=str(path))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"env\.json"):
        ms.set_context(env_config_path=str(path))
    path.write_text('{"rdr": {"enable": true, "mode": 2, "path": "/tmp"}, "sys": {"mem_reuse": false}}')
    ms.set_context(env_config_path=str(path))
    assert ms.get_context("env_config_path") == os.path.realpath(path)
    assert msctx.get_context("env_config_path.rdr.mode") == 2
    for wrong in (1, None):
        with pytest.raises(TypeError):
            ms.set_context(env_config_path=wrong)


RIGHT = {"env_config_path.rdr.mode": 2}
ENV_CONFIG = [
    # what the file holds, what is set of it, what is reported of each part
    ('{"foo": 1, "rdr": {"mode": 2}}', RIGHT, ["env_config_path.foo: env_config_path has no such key"]),
    (
        '{"rdr": {"mode": 2, "enable": 1, "x": 0}}',
        RIGHT,
        ["rdr.enable: 1 is not one of the values", "rdr.x: .* has no such key"],
    ),
    ('{"rdr": {"mode": 2}, "sys": 5}', RIGHT, ["env_config_path.sys: 5 is not a dictionary"]),
    ('{"rdr": {"mode": 2, "path": ""}}', RIGHT, ["env_config_path.rdr.path: the text is empty"]),
    ('{"rdr": {"mode": 3}}', {}, ["env_config_path.rdr.mode: 3 is not one of the values"]),
    ('{"rdr": {"mode": 1, "mode": 2}}', RIGHT, ["is given twice"]),
    ('{"rdr": {"mode": 2, "path": NaN}}', RIGHT, ["env_config_path.rdr.path: nan is not text"]),
    (
        '{"sys": {"mem_Reuse": true, "mem_reuse": false}}',
        {"env_config_path.sys.mem_reuse": False},
        ["sys.mem_Reuse: mem_reuse is set too, and wins"],
    ),
    ("[1]", {}, [r"env_config_path: \[1\] is not a dictionary"]),
]


@pytest.mark.parametrize(("text", "options", "reported"), ENV_CONFIG)
def test_mistakes_in_env_config_are_reported_and_ignored(
    text: str, options: dict[str, Any], reported: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "env.json"
    path.write_text(text)
    with pytest.warns(MsctxWarning) as warned:
        ms.set_context(env_config_path=str(path))
    for part in reported:
        assert len([w for w in warned if re.search(part, str(w.message))]) == 1
    assert msctx.get_context() == options
    assert ms.get_context("env_config_path") == ""
    if "twice" in reported[0]:  # nothing is dropped there
        return
    msctx.reset_context()
    msctx.set_context(strict=True)
    with pytest.raises(StrictError, match=reported[0]):
        ms.set_context(env_config_path=str(path))


def test_an_env_config_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text('{"rdr": {"enable": true, "mode": 1}}')
    other.write_text('{"rdr": {"mode": 2}, "foo": 1}')
    ms.set_context(env_config_path=str(one))
    assert msctx.get_context("env_config_path.rdr.enable") is True
    ms.set_context(env_config_path=str(other))
    assert msctx.get_context() == RIGHT


@pytest.mark.parametrize("content", [b"{", b"", b"{'rdr': 1}", b"\xff\xfe", b"[" * 100_000])
def test_an_env_config_that_is_no_json_is_a_value_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="env_config_path"):
        ms.set_context(env_config_path=str(path))
    assert not msctx.get_context()


def test_op_precision_mode(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    path = tmp_path / "op.ini"
    path.write_text("[ByOpType]\nMatMul=high_precision\n")
    ms.set_context(ascend_config={"op_precision_mode": str(path)})
    assert ms.get_context("op_precision_mode") == str(path)
    with pytest.warns(MsctxWarning, match="is a directory"):
        ms.set_context(ascend_config={"op_precision_mode": str(tmp_path)})
    assert ms.get_context("ascend_config") == {"op_precision_mode": str(path)}


def test_parallel_speed_up_json_path(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    path = tmp_path / "speed.json"
    path.write_text('{"enable_task_opt": true, "compute_communicate_fusion_level": 3}')
    ms.set_context(ascend_config={"parallel_speed_up_json_path": str(path)})
    assert ms.get_context("enable_task_opt") is True
    assert ms.get_context("compute_communicate_fusion_level") == 3
    assert ms.get_context("ascend_config") == {"parallel_speed_up_json_path": str(path)}
    for text in ('{"enable_everything": true}', '{"enable_task_opt": 1}', "[", '{"compute_communicate_fusion_level": "3"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"speed\.json"):
            ms.set_context(ascend_config={"parallel_speed_up_json_path": str(path)})
    ms.set_context(ascend_config={"parallel_speed_up_json_path": ""})
    assert ms.get_context("ascend_config") == {"parallel_speed_up_json_path": ""}
    assert ms.get_context("enable_task_opt") is False


def test_unknown_flags_are_reported_and_ignored() -> None:
    flags = "--opt_level=2 --enable_expand_op=MatMul --dump_as_text nonsense --opt_level=7"
    with pytest.warns(MsctxWarning) as reported:
        ms.set_context(graph_kernel_flags=flags)
    assert ms.get_context("graph_kernel_flags") == "--opt_level=3 --dump_as_text"
    text = "\n".join(str(warning.message) for warning in reported)
    for part in (
        "'--enable_expand_op=MatMul' is ignored",
        "(enable_expand_ops)",
        "'nonsense' is ignored",
        "clipped to 3",
        "appears twice",
    ):
        assert part in text
