"""What ms.set_context rejects: where msctx accepts less than MindSpore, what the messages say, and all or nothing."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import msctx
import msctx.mindspore as ms
from msctx.errors import MsctxWarning, StrictError
from msctx.mindspore.errors import KINDS

# --- where msctx takes less than MindSpore -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "given", "taken"),
    [
        ("runtime_num_threads", 1025, 1024),
        ("runtime_num_threads", 2**32 - 1, 1024),
        ("inter_op_parallel_num", 1025, 1024),
        ("max_call_depth", 2**31, 2**31 - 1),
        ("max_call_depth", 2**32 - 1, 2**31 - 1),
        ("host_scheduling_max_threshold", True, 1),
        ("host_scheduling_max_threshold", False, 0),
        ("host_scheduling_max_threshold", -5, 0),
        ("host_scheduling_max_threshold", 2**70, 2**63 - 1),
    ],
)
def test_a_changed_value_is_reported_once(key: str, given: Any, taken: int) -> None:
    is_inner = key == "host_scheduling_max_threshold"
    options: dict[str, Any] = {"ascend_config": {key: given}} if is_inner else {key: given}
    ms.set_context(device_target="Ascend")
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for _ in range(2):
            ms.set_context(**options)
    assert [bool(re.search(f"{key}: {given} is .*{taken}", str(w.message))) for w in issued].count(True) == 1
    assert msctx.get_context(key) == taken
    assert ms.get_context(key) == (str(taken) if is_inner else taken)


@pytest.mark.parametrize("key", ["runtime_num_threads", "inter_op_parallel_num", "max_call_depth"])
def test_messages_give_the_range_that_is_accepted(key: str) -> None:
    for wrong, kind in ((2**32, RuntimeError), (-1, ValueError)):
        with pytest.raises(kind, match=r"to 4294967295; larger values are clipped to"):
            ms.set_context(**{key: wrong})


def test_an_empty_compile_cache_path_takes_back_what_was_set() -> None:
    with pytest.warns(MsctxWarning, match="compile_cache_path: empty text takes back"):
        ms.set_context(compile_cache_path="")
    assert not msctx.current().settings
    ms.set_context(compile_cache_path="cache", check_bprop=True)
    ms.set_context(compile_cache_path="", grad_for_scalar=True)
    assert ms.get_context("compile_cache_path") == ""
    assert msctx.get_context() == {"check_bprop": True, "grad_for_scalar": True}
    with msctx.context(compile_cache_path="other"):
        assert ms.get_context("compile_cache_path") == "other"


STRICTER = [
    # (key of ascend_config, value or what the file holds, what the message says); MindSpore leaves these to CANN
    ("op_precision_mode", "garbage", "garbage"),
    ("op_precision_mode", "[ByOpType]\nMatMul=medium\n", "medium"),
    ("op_precision_mode", "[ByColour]\nMatMul=high_precision\n", "ByColour"),
    ("parallel_speed_up_json_path", '{"compute_communicate_fusion_level": 4}', "4 is "),
    ("parallel_speed_up_json_path", '{"compute_communicate_fusion_level": -1}', "-1 is "),
    ("ge_options", {"session": {"ge.exec.precision_mode": "fp8"}}, "fp8"),
    ("ge_options", {"session": {"ge.exec.hostSchedulingMaxThreshold": "-1"}}, "-1 is out of range"),
    ("ge_options", {"global": {"ge.exec.hostSchedulingMaxThreshold": "many"}}, "many"),
]


@pytest.mark.parametrize(("key", "given", "text"), STRICTER)
def test_contents_that_mindspore_does_not_look_at_are_value_errors(key: str, given: Any, text: str, tmp_path: Path) -> None:
    """Decided so: msctx cannot carry out what it cannot read, and the script should fail where it sets it."""
    ms.set_context(device_target="Ascend")
    if isinstance(given, str):
        path = tmp_path / "content"
        path.write_text(given)
        given = str(path)
    with pytest.raises(ValueError, match=text):
        ms.set_context(ascend_config={key: given})
    assert not ms.get_context("ascend_config")


# --- what messages say ------------------------------------------------------------------------------------------------


SIZES = [
    # key, size, what the message says, the size that it suggests
    ("variable_memory_max_size", "3.5GB", "decimals are rejected", ""),
    ("variable_memory_max_size", "3.GB", "decimals are rejected", ""),
    ("variable_memory_max_size", "3584MB", "not a size", ""),
    ("max_device_memory", "0.00GB", "not more than zero", ""),
    ("mempool_block_size", "512MB", "not a size", ""),
    ("max_device_memory", "512MB", "not a size", "0.5GB"),
    ("mempool_block_size", "2 gib", "not a size", "2GB"),
    ("variable_memory_max_size", "3G", "not a size", "3GB"),
]


def test_a_size_gets_a_hint_in_mindspores_form_that_is_not_rejected_itself() -> None:
    ms.set_context(device_target="Ascend")
    for key, value, text, hint in SIZES:
        with pytest.raises(ValueError, match=text) as caught:
            ms.set_context(**{key: value})
        assert str(caught.value).partition("did you mean ")[2].partition("?")[0] == (f'"{hint}"' if hint else ""), value


def test_articles() -> None:
    ms.set_context(device_target="GPU")
    rows: list[tuple[str, Any, str]] = [
        ("mode", "x", "'x' is a str"),
        ("check_bprop", 1, "1 is an int"),
        ("gpu_config", 1.5, "1.5 is a float"),
        ("check_bprop", None, "None is not a value"),
        ("device_id", None, "None is not a value"),
    ]
    for key, value, text in rows:
        with pytest.raises((TypeError, RuntimeError), match=f"{text}\n"):
            ms.set_context(**{key: value})


@pytest.mark.parametrize("options", [{"enable_dump": True}, {"save_dump_path": "dumps"}])
def test_what_does_that_now_can_be_written_so(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.warns(MsctxWarning) as reported:
        ms.set_context(**options)
    assert not msctx.get_context()
    (text,) = (str(w.message) for w in reported)
    call = "msctx.set_context(session={'enable_dump': True, 'dump_path': DIR})"
    assert text == f"{next(iter(options))}: MindSpore ignores it, and so does msctx; {call} does that now"
    eval(call, {"msctx": msctx, "DIR": str(tmp_path)})
    assert msctx.get_context("session.enable_dump") is True


# --- all or nothing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "x"}, {"mode": 2}, {"op_timeout": 2**32}, {"print_file_path": "/"}, {"foo": 1}, {"max_call_depth": 2**32}],
)
def test_an_error_changes_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend", check_bprop=True)
    before = msctx.get_context(origin=True)
    graphs = tmp_path / "deep" / "graphs"
    options = {"device_target": "CPU", "check_bprop": False, "save_graphs_path": str(graphs), "deterministic": "ON"}
    if "print_file_path" in wrong:
        del options["device_target"]
    with pytest.raises((TypeError, ValueError, RuntimeError, OSError)):
        ms.set_context(**options, **wrong)
    assert msctx.get_context(origin=True) == before
    assert not graphs.parent.exists()


def test_the_message_lists_everything_that_is_wrong() -> None:
    with pytest.raises(TypeError) as caught:
        ms.set_context(deterministic="on", foo=1, mode="x")
    for part in ("mode: 'x' is a str", "did you mean 'ON'", "foo: unknown key", "3 problems; nothing was changed"):
        assert part in str(caught.value)
    assert Path(__file__).name in str(caught.value)


def test_the_first_mistake_in_mindspores_order_decides() -> None:
    rows: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"deterministic": "on", "mode": "x"}, TypeError),  # types before everything else
        ({"op_timeout": 2**32, "device_target": "gpu"}, ValueError),  # then device_target
        ({"op_timeout": 2**32, "deterministic": "on"}, RuntimeError),  # then the order of the call
        ({"deterministic": "on", "op_timeout": 2**32}, ValueError),
        ({"print_file_path": "/", "deterministic": "on", "device_target": "Ascend"}, OSError),
    ]
    for options, kind in rows:
        with pytest.raises(kind) as caught:
            ms.set_context(**options)
        assert type(caught.value) is KINDS[kind], options


def test_the_target_of_the_same_call_counts() -> None:
    ms.set_context(gpu_config={"conv_allow_tf32": False}, device_target="GPU")
    assert ms.get_context("gpu_config") == {"conv_allow_tf32": False}
    with pytest.warns(MsctxWarning, match="gpu_config.*that is CPU"):
        ms.set_context(gpu_config={"conv_allow_tf32": True}, device_target="CPU")
    assert ms.get_context("gpu_config") == {"conv_allow_tf32": False}


def test_mempool_block_size_in_graph_mode_is_skipped() -> None:
    ms.set_context(device_target="GPU", mode=ms.GRAPH_MODE)
    with pytest.warns(MsctxWarning, match="GRAPH_MODE"):
        ms.set_context(mempool_block_size="nonsense")
    ms.set_context(mode=ms.PYNATIVE_MODE, mempool_block_size="2GB")
    assert ms.get_context("mempool_block_size") == 2.0


def test_strict_rejects_what_would_be_ignored() -> None:
    msctx.set_context(strict=True)
    for options in ({"max_device_memory": "4GB", "device_target": "CPU"}, {"enable_sparse": True}):
        with pytest.raises(StrictError, match=r"max_device_memory|enable_sparse"):
            ms.set_context(**options)
    assert ms.get_context("max_device_memory") == 1024.0
