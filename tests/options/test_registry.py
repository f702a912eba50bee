"""All options: each declaration is sound, every problem is reported at once, with the nearest name, and nothing is let slip."""

import ast
import enum
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import example

from msctx.errors import Diagnostic, OptionError
from msctx.options import DEVICES, GROUPS, NAMESPACES, OPTIONS, UNSET, Layer, Option, find, make_layer, option_of
from msctx.options.registry import FAMILIES, named
from msctx.options.yamlfile import load, parse

NAMES = sorted(OPTIONS)
SPELLINGS = [spelling for option in OPTIONS.values() for spelling in option.spellings]


def value_of(spelling: str, value: object) -> object:
    return make_layer({spelling: value}, "test").settings[spelling].value


def problems_of(**values: object) -> tuple[Diagnostic, ...]:
    with pytest.raises(OptionError) as error:
        make_layer(values, "test")
    return error.value.problems


def attempt(values: dict[str, object]) -> Layer | OptionError:
    try:
        return make_layer(values, "test")
    except OptionError as error:
        return error


# --- declarations -----------------------------------------------------------------------------------------------------


def test_declarations_are_complete_and_their_values_are_taken_in_their_final_form() -> None:
    for name, option in OPTIONS.items():
        once = value_of(name, example(option))
        assert value_of(name, once) == once, name
        assert json.loads(json.dumps(once)) == once, f"{name}: values are plain data"
        if option.default is not UNSET:
            found = value_of(name, option.default)
            assert (type(found), found) == (type(option.default), option.default), name
            assert once != option.default, f"{name}: the example shows something else than the default"
        assert option.help.endswith("."), name
        assert set() < set(option.devices) <= set(DEVICES), name
        assert set(option.groups) <= {*GROUPS, *NAMESPACES}, name


def test_spellings_are_unique() -> None:
    assert len(SPELLINGS) == len(set(SPELLINGS))
    assert len(OPTIONS) == sum(len(family.OPTIONS) for family in FAMILIES), "no name is declared twice"


def test_every_spelling_leads_to_its_option() -> None:
    for option in OPTIONS.values():
        for spelling in option.spellings:
            assert find(spelling) is option_of(spelling) is option
    assert find("no_such_option") is None
    assert find("gpu_config") is None


@pytest.mark.parametrize(
    ("spelling", "value", "canonical"),
    [
        ("deterministic", True, "ON"),
        ("deterministic", 0, "OFF"),
        ("session.deterministic", 1, "ON"),
        ("atomic_clean_policy", "ON", 1),
        ("session.atomic_clean_policy", 0, 0),
        ("jit_compile", True, "true"),
        ("session.jit_compile", "auto", "auto"),
        ("mode", "GRAPH_MODE", 0),
        ("mode", 1, 1),
        ("device_target", "Davinci", "Ascend"),
        ("conv_fprop_algo", "precomp_gemm", "implicit_precomp_gemm"),
        ("static_memory_policy", 1, 2),
        ("exception_dump", 1, "1"),
        ("max_device_memory", "4GB", 4 * 2**30),
        ("session.local_device_list", [0, 1], "0,1"),
        ("parallel_speed_up_json_path", None, None),
    ],
)
def test_the_vocabularies_share_one_form(spelling: str, value: object, canonical: object) -> None:
    found = value_of(spelling, value)
    assert (type(found), found) == (type(canonical), canonical)


@pytest.mark.parametrize(
    ("spelling", "flat"),
    [
        ("enable_dump", True),
        ("session.enable_dump", False),
        ("variable_memory_max_size", True),
        ("session.variable_memory_max_size", False),
    ],
)
def test_flat_names_that_two_vocabularies_share_mean_set_contexts(spelling: str, flat: bool) -> None:
    assert option_of(spelling).source.startswith("mindspore") is flat


# --- groups, dotted names ---------------------------------------------------------------------------------------------


def origins(layer: Layer) -> dict[str, tuple[str, object, str]]:
    return {k: (s.option.name, s.value, s.origin) for k, s in layer.settings.items()}


def test_groups_are_dictionaries_and_dotted_names_mean_the_same() -> None:
    nested = make_layer({"gpu_config": {"conv_allow_tf32": False}, "session": {"enable_dump": True}}, "test")
    dotted = make_layer({"gpu_config.conv_allow_tf32": False, "session.enable_dump": True}, "test")
    assert origins(nested) == origins(dotted)
    assert origins(nested) == {
        "gpu_config.conv_allow_tf32": ("conv_allow_tf32", False, "test"),
        "session.enable_dump": ("session.enable_dump", True, "test"),
    }


def test_an_empty_group_sets_nothing() -> None:
    assert make_layer({"gpu_config": {}}, "test").settings == {}


def test_a_dictionary_that_is_a_value_is_no_group() -> None:
    options = {"global": {"ge.a": "1"}, "session": {"ge.b": "2"}}
    layer = make_layer({"ascend_config": {"ge_options": options}}, "test")
    assert {k: s.value for k, s in layer.settings.items()} == {
        "ascend_config.ge_options.global": {"ge.a": "1"},
        "ascend_config.ge_options.session": {"ge.b": "2"},
    }


# --- contradictions ---------------------------------------------------------------------------------------------------


def test_two_spellings_of_one_option_contradict_each_other() -> None:
    (problem,) = problems_of(deterministic="ON", session={"deterministic": 0})
    assert problem.path == "session.deterministic"
    assert problem.text == "'OFF' contradicts deterministic='ON'; they are one option: set one of them"


def test_two_spellings_that_agree_are_fine() -> None:
    layer = make_layer({"deterministic": "ON", "session": {"deterministic": 1}}, "test")
    assert {s.value for s in layer.settings.values()} == {"ON"}


def test_a_group_and_the_flat_spelling_do_not_contradict() -> None:
    """A device's own group beats the flat spelling."""
    layer = make_layer({"conv_allow_tf32": True, "gpu_config": {"conv_allow_tf32": False}}, "test")
    assert len(layer.settings) == 2


def test_a_dotted_name_and_its_dictionary_contradict_each_other() -> None:
    values = {"gpu_config.conv_allow_tf32": False, "gpu_config": {"conv_allow_tf32": True}}
    for ordered in (values, dict(reversed(values.items()))):
        with pytest.raises(OptionError) as error:
            make_layer(ordered, "test")
        assert [p.path for p in error.value.problems] == ["gpu_config.conv_allow_tf32"]


# --- problems ---------------------------------------------------------------------------------------------------------


def test_all_problems_at_once() -> None:
    problems = problems_of(
        deterministic="maybe",
        determinstic="ON",
        gpu_config={"conv_allow_tf32": 1, "conv_allow_tf23": True},
        ascend_config=5,
        max_device_memory="4XB",
        session={"deterministic": 2, "no_such_key": 1},
    )
    assert [p.path for p in problems] == [
        "deterministic",
        "determinstic",
        "gpu_config.conv_allow_tf32",
        "gpu_config.conv_allow_tf23",
        "ascend_config",
        "max_device_memory",
        "session.deterministic",
        "session.no_such_key",
    ]
    assert {p.where for p in problems} == {"test"}


def test_all_problems_inside_one_value_at_once() -> None:
    problems = problems_of(ge_options={"globl": {"ge.a": "1"}, "session": {"ge.b": 2, "ge.c": 3}})
    assert len(problems) == 3
    assert all("[key]" not in p.text for p in problems), "pydantic's own words are not for users"


def test_the_text_of_an_error() -> None:
    with pytest.raises(OptionError) as error:
        make_layer({"determinstic": "ON", "conv_allow_tf32": "no"}, "train.py:12")
    assert str(error.value) == (
        "train.py:12  determinstic: unknown option; did you mean deterministic?\n"
        "train.py:12  conv_allow_tf32: 'no' is not one of the values\n"
        "      allowed: true, false\n"
        "2 problems; nothing was changed."
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("determinstic", "deterministic"),
        ("gpu_cofnig", "gpu_config"),
        ("conv_fprop_alg", "conv_fprop_algo"),
        ("DETERMINISTIC_", "deterministic"),
        ("context.deterministic", "deterministic"),
    ],
)
def test_the_nearest_option_is_named(wrong: str, right: str) -> None:
    (problem,) = problems_of(**{wrong: 1})
    assert problem.text == "unknown option"
    assert problem.suggestion == right
    with pytest.raises(OptionError, match=f"did you mean {right}"):
        option_of(wrong)


@pytest.mark.parametrize("word", ["tf32", "allow_tf32"])
def test_a_word_that_several_options_have(word: str) -> None:
    (problem,) = problems_of(**{word: True})
    assert problem.suggestion == "did you mean conv_allow_tf32 or matmul_allow_tf32?"


def test_a_name_like_none_leads_to_the_list() -> None:
    (problem,) = problems_of(xyzzy=1)
    assert str(problem) == "test  xyzzy: unknown option; `msctx options` lists them all"


@pytest.mark.parametrize(
    ("path", "text", "hint"),
    [
        (
            "gpu_config.precision_mode",
            "gpu_config has no such key",
            "precision_mode stands outside it, or in ascend_config, or in session",
        ),
        (
            "ascend_config.precision_mode_v2",
            "ascend_config has no such key",
            "precision_mode_v2 stands outside it, or in session",
        ),
        ("jit_config.jit_level", "MindSpore 2.3.1 has it, and msctx has no such option; leave it out", ""),
        ("auto_tune_mode", "MindSpore ignores it, and msctx has no such option; use aoe_tune_mode", ""),
        ("enable_sparse", "MindSpore ignores it, and msctx has no such option; leave it out", ""),
        ("session.oo_level", "the code of CANN's TensorFlow adapter has it, and msctx has no such option; leave it out", ""),
    ],
)
def test_a_key_that_stands_elsewhere_or_nowhere(path: str, text: str, hint: str) -> None:
    (problem,) = problems_of(**{path: 1})
    assert (problem.text, problem.suggestion) == (text, hint)


class OnOff(str, enum.Enum):
    ON = "ON"
    CPU = "CPU"

    def __str__(self) -> str:
        return "not this"


def test_enumerations_of_texts_are_their_texts() -> None:
    given = {"deterministic": OnOff.ON, "device_target": OnOff.CPU, "dump_layer": OnOff.ON}
    found = {k: s.value for k, s in make_layer(given, "test").settings.items()}
    assert found == {"deterministic": "ON", "device_target": "CPU", "dump_layer": "ON"}
    assert all(type(value) is str for value in found.values())


def test_paths_may_be_path_objects() -> None:
    assert value_of("save_graphs_path", Path("graphs") / "x") == str(Path("graphs") / "x")


@pytest.mark.parametrize("text", [" ", "\t", ""])
def test_a_blank_path_is_none(text: str) -> None:
    (problem,) = problems_of(save_graphs_path=text)
    assert problem.text in ("the text is blank", "the text is empty")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        return 1


def test_what_cannot_be_printed_is_told_all_the_same() -> None:
    deep: Any = 0
    for _ in range(3000):
        deep = [deep]
    for value in (deep, Unprintable(), {"x": Unprintable()}, {Unprintable(): 1}, [Unprintable()]):
        for name in (
            "deterministic",
            "gpu_config",
            "ge_options.global",
            "max_device_memory",
            "input_shape",
            "graph_kernel_flags",
        ):
            assert isinstance(attempt({name: value}), OptionError)


def test_ge_keys_may_be_written_out() -> None:
    layer = make_layer({"ge_options.session.ge.deterministic": "1", "ge_options.session.ge.x": "2"}, "test")
    assert layer.settings["ge_options.session"].value == {"ge.deterministic": "1", "ge.x": "2"}
    assert layer.settings["ge_options.session.ge.deterministic"].value == "ON"


def test_a_ge_key_that_is_written_out_has_its_own_place() -> None:
    text = "context:\n  max_call_depth: 1000\n\n  ge_options.session.ge.exec.precision_mode: bad\n"
    document = parse(text, "x.yaml")
    with pytest.raises(OptionError) as error:
        make_layer(document.data["context"], "x.yaml", document.under("context"))
    assert str(error.value.problems[0].mark) == "x.yaml:4:46"


def test_a_relative_path_in_a_file_is_looked_for_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "env.json").write_text('{"rdr": {"enable": true}}')
    (tmp_path / "x.yaml").write_text("context:\n  env_config_path: env.json\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    document = load("../x.yaml")
    layer = make_layer(document.data["context"], "../x.yaml", document.under("context"))
    assert layer.settings["env_config_path"].value == str(Path("..") / "env.json")
    assert layer.settings["env_config_path.rdr.enable"].value is True


def test_any_name_of_an_option_finds_it() -> None:
    names = ["deterministic", "session.deterministic", "ge.deterministic", "MSCTX_DETERMINISTIC", "set_deterministic"]
    for name in [*names, "ge_options.session.ge.deterministic"]:
        assert named(name) is OPTIONS["deterministic"]
    assert named("MSCTX_GPU_CONFIG__CONV_FPROP_ALGO") is OPTIONS["conv_fprop_algo"]


def test_the_nearest_key_of_a_group_is_named() -> None:
    (problem,) = problems_of(gpu_config={"conv_allow_tf23": True})
    assert problem.suggestion == "conv_allow_tf32"
    assert "matmul_allow_tf32" in problem.allowed


def test_a_group_needs_a_dictionary() -> None:
    for value in (5, None, "conv_allow_tf32", ["conv_allow_tf32"]):
        (problem,) = problems_of(gpu_config=value)
        assert "dictionary" in problem.text


def test_keys_that_are_not_text_are_unknown_options() -> None:
    options: dict[Any, Any] = {1: 2}
    with pytest.raises(OptionError, match="1: unknown option"):
        make_layer(options, "test")


def test_every_wrong_value_is_answered_with_what_is_allowed() -> None:
    for name in NAMES:
        (problem,) = problems_of(**{name: object()})
        assert problem.path == name
        assert problem.allowed, name


@pytest.mark.parametrize(
    ("name", "wrong", "suggested"),
    [
        ("op_timeout", 60.0, 60),
        ("save_graphs", "2", 2),
        ("debug_level", "1", 1),
        ("dump_layer", 5, "5"),
        ("dump_path", 1, "1"),
        ("deterministic", "on", "ON"),
        ("max_device_memory", "4OGB", "40GB"),
        ("conv_fprop_algo", "winogard", "winograd"),
        ("device_target", "gpus", "GPU"),
        ("precision_mode", "bf16", "allow_mix_precision_bf16"),
        ("precision_mode_v2", "bf16", "mixed_bfloat16"),
        ("conv_fprop_algo", "algo_1", "implicit_precomp_gemm"),
        ("conv_dgrad_algo", "auto", "performance"),
        ("max_device_memory", 4, "4GB"),
    ],
)
def test_a_suggested_value_can_be_written_as_it_stands(name: str, wrong: object, suggested: object) -> None:
    (problem,) = problems_of(**{name: wrong})
    assert problem.suggestion == repr(suggested)
    value_of(name, ast.literal_eval(problem.suggestion))


# --- anything at all --------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**60).map(lambda n: n**7),
    st.floats(),
    st.text(),
    st.text("0123456789.GMKBib +-eE:_,;|", max_size=12),
    st.from_regex(r"\A[0-9]{1,400}(\.[0-9]+)? ?[KMGTkmgt]?i?[Bb]?\Z"),
    st.binary(max_size=4),
    st.complex_numbers(),
    st.sampled_from(["ON", "on", "OFF", "", "0", "1", "true", "auto", "normal", "GPU"]),
)
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["global", "session", "ge.a", "key"]) | st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=100)
@given(spelling=st.sampled_from(SPELLINGS), value=GARBAGE)
def test_anything_is_taken_in_its_final_form_or_is_an_option_error(spelling: str, value: object) -> None:
    found = attempt({spelling: value})
    if isinstance(found, OptionError):
        assert found.problems
        assert str(found).endswith("nothing was changed.")
    elif spelling in found.settings:  # an empty dictionary sets nothing
        final = found.settings[spelling].value
        assert value_of(spelling, final) == final
        json.dumps(final)


def test_numbers_that_no_machine_can_hold_are_refused() -> None:
    """Python will not even print them: every message, key and record that holds one would raise."""
    assert [name for name in NAMES if not isinstance(attempt({name: 10**5000}), OptionError)] == []


@pytest.mark.parametrize("name", ["runtime_num_threads", "inter_op_parallel_num", "max_call_depth"])
def test_numbers_that_torch_cannot_hold_are_refused(name: str) -> None:
    """The catalogue has them up to 32 bits; torch and Python raise errors of their own beyond."""
    with pytest.raises(OptionError):
        make_layer({name: 2**32}, "test")


@settings(max_examples=30)
@given(values=st.dictionaries(st.text(max_size=8) | st.sampled_from([*SPELLINGS, *GROUPS, *NAMESPACES]), GARBAGE, max_size=4))
def test_any_dictionary_is_a_layer_or_an_option_error(values: dict[str, object]) -> None:
    found = attempt(values)
    if isinstance(found, OptionError):
        assert found.problems
    else:
        assert all(isinstance(s.option, Option) for s in found.settings.values())


# --- files and texts that a value names -------------------------------------------------------------------------------


def test_the_keys_of_a_file_are_options_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_text('{"rdr": {"enable": true,\n  "mode": 2}, "sys": {"mem_Reuse": false}}')
    layer = make_layer({"env_config_path": str(path)}, "test")
    assert {k: (s.value, s.via) for k, s in layer.settings.items()} == {
        "env_config_path": (str(path), ""),
        "env_config_path.rdr.enable": (True, "env_config_path"),
        "env_config_path.rdr.mode": (2, "env_config_path"),
        "env_config_path.sys.mem_Reuse": (False, "env_config_path"),
    }
    assert layer.settings["env_config_path.rdr.mode"].origin == f"{path}:2:11"


def test_what_stands_beside_a_file_wins_over_what_stands_in_it(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_text('{"rdr": {"enable": true, "mode": 2}}')
    given = {"env_config_path": str(path), "env_config_path.rdr.mode": 1}
    for values in (given, dict(reversed(given.items()))):
        found = make_layer(values, "test").settings["env_config_path.rdr.mode"]
        assert (found.value, found.via) == (1, "")


def test_the_content_of_a_file_may_stand_in_its_place() -> None:
    layer = make_layer({"env_config_path": {"rdr": {"enable": True}}, "graph_kernel_flags": {"opt_level": 3}}, "test")
    assert {k: s.value for k, s in layer.settings.items()} == {
        "env_config_path.rdr.enable": True,
        "graph_kernel_flags.opt_level": 3,
    }


def test_a_dotted_key_is_no_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_text('{"rdr.enable": true}')
    (problem,) = problems_of(env_config_path=str(path))
    assert problem.path == "env_config_path.rdr.enable"
    assert problem.mark is not None


def test_a_text_of_flags_is_read_and_its_origin_is_where_it_was_set() -> None:
    layer = make_layer({"graph_kernel_flags": ["--opt_level=1", "--dump_as_text"]}, "mine")
    assert {k: (s.value, s.origin) for k, s in layer.settings.items()} == {
        "graph_kernel_flags": ("--opt_level=1 --dump_as_text", "mine"),
        "graph_kernel_flags.opt_level": (1, "mine"),
        "graph_kernel_flags.dump_as_text": (True, "mine"),
    }


def test_other_files_are_kept_as_content(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('{"black-list": {"to-add": ["MatMul"]}}')
    setting = make_layer({"modify_mixlist": str(path)}, "test").settings["modify_mixlist"]
    assert (setting.value, setting.content) == (str(path), {"black-list": {"to-add": ["MatMul"]}})
    path.write_text('{"white-list": {"to-add": ["MatMul"]}}')
    again = make_layer({"modify_mixlist": str(path)}, "test")
    assert again.key != Layer({"modify_mixlist": setting}).key, "another content is another plan"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: None, "No such file or directory"),
        (lambda p: p.mkdir(), "Is a directory"),
        (lambda p: p.write_bytes(b"\xff\xfe\x00"), "it is not UTF-8 text (byte 0)"),
        (os.mkfifo, "it is a device or a pipe, which may never end"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    path = tmp_path / "x.json"
    make(path)
    (problem,) = problems_of(env_config_path=str(path))
    assert problem.text == f"{str(path)!r} cannot be read: {reason}"


@pytest.mark.parametrize("path", ["~nobody_at_all/x.json", "x" * 5000])
def test_a_path_that_no_system_takes(path: str) -> None:
    (problem,) = problems_of(env_config_path=path)
    assert "cannot be read" in problem.text


def test_every_problem_of_a_file_is_told_beside_those_of_the_call(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    path.write_text('{"enable_task_opt": 1, "no_such": true}')
    found = problems_of(parallel_speed_up_json_path=str(path), determinstic="ON")
    assert [p.path for p in found] == [
        "parallel_speed_up_json_path.enable_task_opt",
        "parallel_speed_up_json_path.no_such",
        "determinstic",
    ]
    assert found[0].mark is not None
    assert found[0].mark.file == str(path)


def test_an_option_pickles_as_its_name_and_a_layer_whole(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    path.write_text('{"black-list": {"to-add": ["MatMul"]}}')
    layer = make_layer({"modify_mixlist": str(path), "deterministic": "ON"}, "test")
    path.unlink()
    again = pickle.loads(pickle.dumps(layer))
    assert again.key == layer.key
    assert again.settings["deterministic"].option is OPTIONS["deterministic"]


def test_what_files_and_flags_take_and_what_not(tmp_path: Path) -> None:
    """Found by comparing two releases: what was accepted stays accepted, and what was refused is refused."""
    values = [("session.local_device_list", "007", "7"), ("session.dump_step", "007|010-12", "7|10-12")]
    for name, text, canonical in values:
        (setting,) = make_layer({name: text}, "test").settings.values()
        assert setting.value == canonical
    assert make_layer({"graph_kernel_flags": "--opt_level=02"}, "t").settings["graph_kernel_flags.opt_level"].value == 2
    for flags in ("--dump_as_text=yes", "--dump_as_text=TRUE", "--opt_level=+1", "--opt_level=0x2"):
        assert problems_of(graph_kernel_flags=flags), flags
    file = tmp_path / "env.json"
    file.write_text('{"rdr": 5}')
    (problem,) = problems_of(env_config_path=str(file))
    assert (problem.path, problem.text) == ("env_config_path.rdr", "needs a dictionary of options")
    assert problem.mark is not None
    assert (problem.mark.line, problem.mark.column) == (1, 9)
    (problem,) = problems_of(profiling_options='{"storage_limit": "0200MB"}')
    assert "did you mean '200MB'" in str(problem) or "did you mean 200MB" in str(problem)
