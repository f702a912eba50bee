"""The catalogue of MindSpore's, CANN's and ATC's options, path by path: every value is taken at its path, every wrong one reported.

``catalogue.json`` holds the facts, made from the documents apart from the declarations: path, closed values, devices, CANN's key.
"""

import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import pytest
from samples import example, values

import msctx
from msctx.effects import Facts, Want, translate
from msctx.errors import OptionError
from msctx.options import DEVICES, OPTIONS, UNSET, Option, Settings, find, make_layer
from msctx.options.kinds import ChoiceKind
from msctx.options.option import device_of, rank_of
from msctx.plan import DONE, FAILING
from msctx.reference import DICTIONARIES, catalogue, paths

CATALOGUE = json.loads((Path(__file__).parent / "catalogue.json").read_text())
ROWS = {row["path"]: row for row in CATALOGUE}
OPTION_PATHS = [path for path in ROWS if path not in DICTIONARIES]
CAPPED_HERE = "max_device_memory"
"""MindSpore ignores the cap on a CPU; msctx will hold it there."""


Row = TypeVar("Row")


def each(rows: Iterable[Row]) -> Callable[[Callable[[Row], None]], Callable[[], None]]:
    """One test that checks every row and names all rows that fail."""

    def decorate(check: Callable[[Row], None]) -> Callable[[], None]:
        def test() -> None:
            failed = []
            for row in rows:
                try:
                    check(row)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append(f"{getattr(row, 'name', row)}: {type(error).__name__}: {error}")
            assert not failed, "\n".join(failed)

        return test

    return decorate


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


@each(OPTION_PATHS)
def test_the_devices_are_those_of_the_catalogue(path: str) -> None:
    option = option_at(path)
    if not option.replaced_by and option.name != CAPPED_HERE:
        assert set(option.devices) == set(ROWS[path]["devices"])


@each([path for path in OPTION_PATHS if "default" in ROWS[path]])
def test_the_defaults_are_those_of_the_catalogue(path: str) -> None:
    default, expected = option_at(path).default_at(path), ROWS[path]["default"]
    if expected == "unset":
        assert default is UNSET
    elif expected is None or expected == "":
        assert default == expected
    else:
        found = canonical(path, expected)
        assert (type(default), default) == (type(found), found)


LIMITS = [
    ("device_id", [0, 4095], [-1, 4096]),
    ("max_device_memory", ["0.5GB", "1024GB"], ["0GB", "-1GB"]),
    ("variable_memory_max_size", ["31GB"], ["31.5GB", "32GB"]),
    ("mempool_block_size", ["1GB"], ["0.9GB", "1023MB"]),
    ("op_timeout", [0, 900, 2**32 - 1], [-1, 2**32]),
    ("save_graphs", [0, 3], [-1, 4]),
    ("max_call_depth", [1], [0, -1]),
    ("inter_op_parallel_num", [0, 1], [-1]),
    ("runtime_num_threads", [0, 1], [-1]),
    ("graph_kernel_flags.opt_level", [0, 3], [-1, 4]),
    ("parallel_speed_up_json_path.compute_communicate_fusion_level", [0, 3], [-1, 4]),
    ("host_scheduling_max_threshold", [0, 1], []),
    ("session_device_id", [0], [-1]),
    ("static_memory_policy", [0, 1, 2, 3, 4], [-1, 5]),
    ("input_fusion_size", [0, 33554432], [-1, 33554433]),
    ("dynamic_node_type", [0, 1], [2]),
    ("enable_exception_dump", [0, 2], [3]),
    ("export_compile_stat", [0, 2], [3]),
    ("iterations_per_loop", [1], [0]),
    ("graph_max_parallel_model_num", [1, 2**31 - 1], [0, 2**31]),
    ("local_rank_id", [0, 7], [-1, 8]),
    ("hccl_timeout", [0, 2**31 - 1], [-1]),
    ("op_wait_timeout", [1], [0]),
    ("op_execute_timeout", [1], [0]),
    ("stream_sync_timeout", [-1, 1], [-2, 0]),
    ("event_sync_timeout", [-1, 1], [-2, 0]),
    ("op_debug_level", [0, 4], [5]),
]


@each(LIMITS)
def test_limits_are_those_of_the_catalogue(row: tuple[str, list[Any], list[Any]]) -> None:
    name, inside, outside = row
    for value in inside:
        canonical(name, value)
    for value in outside:
        with pytest.raises(OptionError):
            canonical(name, value)


ALIASES = {
    "device_target": {"Davinci": "Ascend"},
    "static_memory_policy": {1: 2},
    "save_graphs": {True: 2, False: 0},
    "conv_fprop_algo": {"precomp_gemm": "implicit_precomp_gemm"},
    "mode": {"GRAPH_MODE": 0, "PYNATIVE_MODE": 1},
    "jit_syntax_level": {"STRICT": 0, "COMPATIBLE": 1, "LAX": 2},
    "debug_level": {"RELEASE": 0, "DEBUG": 1},
    "jit_compile": {True: "true", False: "false"},
}


@each(ALIASES)
def test_aliases_mean_what_the_sources_say(name: str) -> None:
    for alias, choice in ALIASES[name].items():
        assert canonical(name, alias) == choice


LATER_NAMES = {
    "recomputation_communication_overlap": "recompute_comm_overlap",
    "grad_matmul_communication_overlap": "matmul_grad_comm_overlap",
    "enable_communication_fusion": "enable_task_opt",
    "grad_computation_allreduce_overlap": "enable_grad_comm_opt",
    "computation_allgather_overlap": "enable_opt_shard_comm_opt",
    "computation_communication_fusion_level": "compute_communicate_fusion_level",
}


@each(LATER_NAMES)
def test_later_names_of_keys_lead_to_the_same_option(later: str) -> None:
    for group in ("parallel_speed_up_json_path", "ascend_config.parallel_speed_up_json_path"):
        assert find(f"{group}.{later}") is OPTIONS[f"parallel_speed_up_json_path.{LATER_NAMES[later]}"]


def test_ge_keys_are_those_of_the_catalogue() -> None:
    mine = {o.ge: o.name for o in OPTIONS.values() if o.ge}
    theirs = {row["ge"]: option_at(row["path"]).name for row in CATALOGUE if row["ge"]}
    assert mine == theirs
    assert len(mine) == sum(1 for o in OPTIONS.values() if o.ge), "no key means two options"


# --- every value, in every vocabulary ---------------------------------------------------------------------------------


@each([path for path in OPTION_PATHS if ROWS[path]["values"]])
def test_every_value_of_the_catalogue_is_taken_at_its_path(path: str) -> None:
    option = option_at(path)
    for value in ROWS[path]["values"]:
        found = canonical(path, value)
        assert canonical(path, found) == found
        assert not option.choices or found in option.choices


@each(OPTIONS.values())
def test_every_spelling_takes_every_value_to_the_same_form(option: Option) -> None:
    for value in values(option):
        assert len({repr(canonical(spelling, value)) for spelling in option.spellings}) == 1


@each(OPTIONS.values())
def test_a_dotted_name_and_dictionaries_are_the_same(option: Option) -> None:
    for spelling in option.spellings:
        nested: Any = example(option)
        for part in reversed(spelling.split(".")):
            nested = {part: nested}
        assert make_layer(nested, "test").settings[spelling].value == canonical(spelling, example(option))


@each(OPTIONS.values())
def test_every_alias_leads_to_a_choice(option: Option) -> None:
    for alias, choice in getattr(option.kind, "aliases", {}).items():
        assert canonical(option.name, alias) == choice
        assert choice in option.kind.choices


@each([o for o in OPTIONS.values() if o.choices])
def test_every_choice_is_explained(option: Option) -> None:
    assert isinstance(option.kind, ChoiceKind)
    meanings = option.kind.meanings
    assert set(meanings) == set(option.choices)
    assert all(3 <= len(text.split()) <= 16 and not text.endswith(".") for text in meanings.values())


MEMORY = (
    *("max_device_memory", "mempool_block_size", "memory_optimize_level"),
    *("static_memory_policy", "env_config_path.sys.mem_reuse", "memory_offload"),
)


@each(OPTIONS.values())
def test_every_value_is_translated_on_every_device(option: Option) -> None:
    for device, value in product(DEVICES, values(option)):
        settings = Settings([make_layer({option.name: value}, "test")])
        setting = settings.get(option.name)
        assert setting is not None
        outcome = translate(Want(option, setting.value, device, settings, Facts.everything()))
        if outcome is None:  # it is about the target alone, or of an accelerator's memory
            assert option.name in ("device_target", "device_id", "session_device_id", "default_device") or (
                device == "cpu" and option.name in MEMORY
            )
        else:
            assert outcome.status in (*DONE, *FAILING)
            assert outcome.reason or outcome.status == "honoured"


GE = [o for o in OPTIONS.values() if o.ge]


@each(GE)
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

WRONG = (None, 1.5, float("nan"), float("inf"), b"ON", object(), [[]], [None], {"no": "such key"}, 10**5000, -(10**400), 1j)


@each(OPTIONS.values())
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


@each([o for o in OPTIONS.values() if o.choices])
def test_a_value_that_is_no_choice_is_told_with_the_choices(option: Option) -> None:
    wrong: list[Any] = ["no such value", "", 99, -1, *(f"{choice}x" for choice in option.choices)]
    wrong += [
        c.swapcase() for c in option.choices if isinstance(c, str) and c.swapcase() != c and option.name != "device_target"
    ]
    for value in wrong:
        with pytest.raises(OptionError) as error:
            make_layer({option.name: value}, "test")
        (problem,) = error.value.problems
        assert all(str(choice) in problem.allowed for choice in option.choices)


@each([o for o in OPTIONS.values() if o.choices])
def test_a_misspelt_choice_is_recognised(option: Option) -> None:
    for choice in option.choices:
        if isinstance(choice, str) and len(choice) > 4:
            with pytest.raises(OptionError) as error:
                make_layer({option.name: choice[:-2] + choice[-1] + choice[-2] + "_"}, "test")
            assert error.value.problems[0].suggestion


@each(OPTIONS.values())
def test_two_values_under_two_spellings_are_an_error_or_one_of_them_wins(option: Option) -> None:
    forms = list({repr(f): f for f in (canonical(option.name, v) for v in values(option))}.values())
    if len(forms) < 2:
        return
    for other in option.spellings[1:]:
        given = {option.name: forms[0], other: forms[1]}
        if (device_of(option.name), rank_of(option.name)) == (device_of(other), rank_of(other)):
            with pytest.raises(OptionError, match="they are one option"):
                make_layer(given, "test")
        else:  # the spelling of higher rank wins where both speak
            settings = Settings([make_layer(given, "test")])
            winner = max((option.name, other), key=rank_of)
            device = device_of(winner) or device_of(other) or option.devices[0]
            found = settings.get(option.name, device)
            assert found is not None
            assert found.spelling == winner
