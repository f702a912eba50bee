"""The reference: a row for each path of the catalogue on each device, and a page for each option."""

import json

import pytest

from msctx.options import DEVICES, OPTIONS, Settings, device_of, make_layer
from msctx.options.kinds import MemoryKind
from msctx.plan import DONE, FAILING, make
from msctx.reference import DICTIONARIES, catalogue, describe, on_device, typical
from msctx.themes import Facts


@pytest.mark.parametrize(
    "name", ["session.enable_dump", "dump_mode", "dump_format", "dump_debug_mode", "env_config_path.rdr.mode"]
)
def test_an_option_is_shown_beside_those_that_it_needs(name: str) -> None:
    """Without them nothing happens, and that is honoured."""
    assert {on_device(OPTIONS[name], device).status for device in DEVICES} == {"approximated"}


def test_sizes_are_in_words() -> None:
    assert describe(OPTIONS["mempool_block_size"])["defaults_in_words"] == {"runtime": "2 GiB"}
    assert [
        option.name for option in OPTIONS.values() if isinstance(option.kind, MemoryKind) and str(option.example).isdecimal()
    ] == []


def test_what_is_set_shows_in_its_rows() -> None:
    options = {"deterministic": "ON", "gpu_config": {"conv_allow_tf32": False}, "graph_kernel_flags": "--opt_level=1"}
    rows = {row["path"]: row for row in catalogue("cuda", make(Settings([make_layer(options, "mine")]), Facts(("cuda",))))}
    assert (rows["deterministic"]["value"], rows["deterministic"]["origin"]) == ("ON", "mine")
    assert rows["deterministic"]["assignments"]["torch.cudnn.deterministic"] is True
    assert rows["session.deterministic"]["value"] == "ON"
    assert rows["gpu_config"]["value"] == {"conv_allow_tf32": False}
    assert rows["graph_kernel_flags.opt_level"]["value"] == 1
    assert rows["mode"]["origin"] == "default"


NOT_ON_A_CPU = (
    *("device_target", "device_id", "mempool_block_size", "static_memory_policy", "ge_options.global", "ge_options.session"),
)
"""Options that mean something there and have no effect: they are about accelerators."""


def test_every_option_has_its_page() -> None:
    for name, option in OPTIONS.items():
        page = describe(option)
        assert json.loads(json.dumps(page)) == page, name
        assert [v["value"] for v in page["values"]] == list(option.choices), name
        for device in DEVICES:
            found = page["status"][device]
            assert found["status"] in (*DONE, *FAILING), name
            expected = option.devices if not option.replaced_by else ()
            assert (found["status"] != "inert") is (device in expected) or name in NOT_ON_A_CPU, name
        if option.format is not None and option.names_file:
            parsed = option.format.parse(page["file"], option.example)
            assert parsed.problems == [], name
            assert parsed.data, name


@pytest.mark.parametrize("device", DEVICES)
def test_an_option_that_nobody_set_shows_what_setting_it_by_this_path_comes_to(device: str) -> None:
    rows = [row for row in catalogue(device) if row["path"] not in DICTIONARIES]
    wrong = {}
    for row in rows:
        plan = make(Settings([make_layer({row["path"]: typical(OPTIONS[row["option"]])}, "x")]), Facts((device,)))
        found = [planned for planned in plan.rows if planned.spelling == row["path"]]
        here = [planned for planned in found if planned.device in (device, device_of(row["path"]))]
        expected = (here[0].status, here[0].reason) if here else ("inert", f"it has no meaning on {device}")
        if found and expected != (row["status"], row["reason"]):
            wrong[row["path"]] = row["status"], expected
    assert wrong == {}


def test_what_else_a_path_comes_to_is_shown_beside() -> None:
    rows = {row["path"]: row for row in catalogue("cpu")}
    found = {path: (rows[path]["status"], rows[path]["otherwise"]) for path in rows}
    assert found["gpu_config.conv_fprop_algo"] == ("inert", {"honoured": "as conv_fprop_algo"})
    assert found["ascend_config.precision_mode"] == ("inert", {"honoured": "as precision_mode"})
    assert found["session.optypelist_for_implmode"] == ("refused", {"honoured": "with the options it needs"})
    assert found["device_id"] == ("inert", {"honoured": "with 0"})
    assert found["deterministic"] == ("honoured", {})
