"""ms.set_context and ms.get_context: values, exceptions, forms and names, drawn from a table that is MindSpore's."""

from typing import Any

import pytest
from set_context_table import CASES, FILES, INNER, OURS, TARGET_OF, UNHELD, Case, Inner, set_target

import msctx
import msctx.mindspore as ms
from msctx import notices
from msctx.context.base import BASE
from msctx.errors import MsctxWarning
from msctx.mindspore.keys import FLAT, GROUPS, KEYS


def is_same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and bool(found == expected)


def wrong_values(case: Case | Inner) -> list[tuple[Any, type[Exception]]]:
    kinds = ((TypeError, case.types), (ValueError, case.values), (RuntimeError, case.runtime))
    return [(value, kind) for kind, values in kinds for value in values]


def test_the_table_has_every_key() -> None:
    assert {*CASES, *FILES, *UNHELD} == {*KEYS}
    assert {*INNER} == {(group, key) for group, keys in GROUPS.items() for key in keys}


# --- each key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", CASES)
def test_a_key_shows_its_default_and_good_values_in_mindspores_form(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEVICE_ID", raising=False)
    set_target(key)
    assert is_same(ms.get_context(key), CASES[key].unset)
    for given, shown in CASES[key].good:
        msctx.reset_context()
        set_target(key)
        ms.set_context(**{key: given})
        assert is_same(ms.get_context(key), shown), given


@pytest.mark.parametrize("key", CASES)
def test_a_wrong_value_is_mindspores_exception_and_none_is_left_to_the_setter(key: str) -> None:
    set_target(key)
    before = BASE.version
    for given, kind in [*wrong_values(CASES[key]), (None, CASES[key].none)]:
        with pytest.raises(kind) as caught:
            ms.set_context(**{key: given})
        assert type(caught.value) is OURS[kind], given
        assert key in str(caught.value)
        assert BASE.version == before


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.off])
def test_a_key_of_another_target_is_skipped_with_a_warning(key: str) -> None:
    case = CASES[key]
    ms.set_context(device_target=case.off)
    for value in [case.good[0][0], *case.values, None]:
        notices.forget()
        with pytest.warns(MsctxWarning, match=f"{key}.* alone, and that is {case.off}"):
            ms.set_context(**{key: value})
    with pytest.raises(TypeError):
        ms.set_context(**{key: case.types[0]})
    with pytest.warns(MsctxWarning, match=f"{key}.* alone, and that is {case.off}"):
        assert ms.get_context(key) == case.unset
    assert set(msctx.current().settings) == {"device_target"}


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.off])
def test_what_was_set_shows_on_another_target_too(key: str) -> None:
    set_target(key)
    ms.set_context(**{key: CASES[key].good[0][0]})
    ms.set_context(device_target=CASES[key].off)
    assert ms.get_context(key) == CASES[key].good[0][1]


WITHOUT_DECORATOR: list[tuple[str, Any, type[Exception]]] = [
    ("mode", "GRAPH_MODE", ValueError),
    ("mode", 1.0, RuntimeError),
    ("device_target", 123, ValueError),
    ("device_id", "cpu", TypeError),
    ("device_id", 1.5, RuntimeError),
    ("save_graphs", "1", TypeError),
    ("save_graphs_path", 1, ValueError),
    ("deterministic", 1, ValueError),
    ("precompile_only", "yes", RuntimeError),
    ("reserve_class_name_in_scope", 1, ValueError),
    ("enable_compile_cache", "x", ValueError),
    ("max_call_depth", "x", TypeError),
    ("aoe_tune_mode", 1, ValueError),
    ("graph_kernel_flags", 1, RuntimeError),
    ("print_file_path", 1, TypeError),
    ("jit_syntax_level", "STRICT", ValueError),
    ("jit_syntax_level", 1.0, RuntimeError),
    ("support_binary", 1, TypeError),
]


def test_without_the_decorator_the_setters_decide() -> None:
    ms.set_context(device_target="Ascend")
    for key, given, kind in WITHOUT_DECORATOR:
        with pytest.raises(kind) as caught:
            ms.set_context.__wrapped__(**{key: given})
        assert type(caught.value) is OURS[kind], key
    ms.set_context(device_target="GPU")
    ms.set_context.__wrapped__(max_device_memory="3GB", device_id=0)
    assert ms.get_context("max_device_memory") == 3.0


@pytest.mark.parametrize("key", UNHELD)
def test_what_mindspore_or_msctx_ignores_is_reported(key: str) -> None:
    good, types, values = UNHELD[key]
    with pytest.warns(MsctxWarning, match=key):
        ms.set_context(**{key: good})
    assert not msctx.current().settings
    for kind, wrong in ((TypeError, types), (ValueError, values)):
        for value in wrong:
            with pytest.raises(kind):
                ms.set_context(**{key: value})


# --- the dictionaries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "key"), INNER)
def test_a_key_of_a_dictionary(group: str, key: str) -> None:
    ms.set_context(device_target=TARGET_OF[group])
    for given, kind in wrong_values(INNER[group, key]):
        with pytest.raises(kind, match=rf"{group}\.{key}") as caught:
            ms.set_context(**{group: {key: given}})
        assert type(caught.value) is OURS[kind], given
        assert not ms.get_context(group)
    for given, flat in INNER[group, key].good:
        msctx.reset_context()
        ms.set_context(device_target=TARGET_OF[group])
        ms.set_context(**{group: {key: given}})
        assert ms.get_context(group) == {key: given}
        assert is_same(ms.get_context("aoe_job_type" if key == "job_type" else key), flat)


@pytest.mark.parametrize("name", FLAT)
def test_flat_names_of_dictionaries_can_only_be_read(name: str) -> None:
    group, key = FLAT[name]
    assert ms.get_context(name) == INNER[group, key].unset
    ms.set_context(device_target=TARGET_OF[group])
    with pytest.raises(ValueError, match=f"takes it in {group} alone"):
        ms.set_context(**{name: INNER[group, key].good[0][0] if INNER[group, key].good else "x"})


def test_dictionaries_merge_key_by_key() -> None:
    ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "fft"})
    ms.set_context(gpu_config={"conv_dgrad_algo": "algo_1"})
    assert ms.get_context("gpu_config") == {"conv_fprop_algo": "fft", "conv_dgrad_algo": "algo_1"}


def test_the_word_of_the_documentation_is_rejected_with_mindspores_own() -> None:
    with pytest.raises(ValueError, match="MindSpore's word for it is precomp_gemm"):
        ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "implicit_precomp_gemm"})


# --- names ------------------------------------------------------------------------------------------------------------


def test_messages_distinguish_keys_of_msctx_from_unknown_ones() -> None:
    for name in ("cpu_config", "session", "atc", "preset", "seed", "strict", "device_context"):
        with pytest.raises(ValueError, match=f"{name}: MindSpore has no such key; msctx.set_context takes it"):
            ms.set_context(**{name: {}})
    for name in ("modex", "precison_mode", "_graph_memory_max_size", "conv_allow_tf32"):
        with pytest.raises(ValueError, match=f"{name}: (?!MindSpore has no such key)"):
            ms.set_context(**{name: 1})
    with pytest.raises(ValueError, match="did you mean deterministic"):
        ms.set_context(determinstic="ON")


@pytest.mark.parametrize("name", ["modex", "seed", "enable_dump", "save_dump_path", "parallel_speed_up_json_path", "_x"])
def test_unknown_names_of_get_context_are_value_errors(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ms.get_context(name)


def test_get_context_accepts_names_alone() -> None:
    number: Any = 5
    with pytest.raises(TypeError, match="5 is not the name"):
        ms.get_context(number)
    assert ms.get_context(attr_key="mode") == 1


@pytest.mark.parametrize(
    ("name", "value"), [("enable_task_opt", False), ("compute_communicate_fusion_level", 0), ("jit_level", "")]
)
def test_names_that_only_get_context_has(name: str, value: Any) -> None:
    assert ms.get_context(name) == value
