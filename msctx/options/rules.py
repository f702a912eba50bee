"""How options act on each other, as data: which wins, which exclude each other, which need another.

The rules are those of MindSpore, CANN's TensorFlow adapter and ATC, and hold on every device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from msctx.options.option import DEVICES

if TYPE_CHECKING:
    from msctx.options.layer import Setting

OFF = (False, 0, "0", "OFF", "", None)


@dataclass(frozen=True)
class When:
    """An option that is set, and set to something; with *values*: to one of them; with *test*: to what it accepts."""

    name: str
    values: tuple[Any, ...] = ()
    test: Callable[[Any], bool] | None = None
    words: str = ""

    def holds(self, setting: Setting | None) -> bool:
        if setting is None or setting.option.name != self.name:
            return False
        value = setting.value
        if self.test is not None:
            return self.test(value if setting.content is None else setting.content)
        if self.values:
            return any(type(v) is type(value) and v == value for v in self.values)
        return not any(type(v) is type(value) and v == value for v in OFF)

    def __str__(self) -> str:
        if self.words:
            return f"{self.name} {self.words}"
        return f"{self.name}={'|'.join(map(str, self.values))}" if self.values else self.name


def _any(value: Any) -> bool:
    return True


def _more_than_one(value: Any) -> bool:
    return bool(value > 1)


@dataclass(frozen=True)
class Overrides:
    """*winner* takes the place of *loser* in one layer. In different layers the higher one wins, unless *always*."""

    winner: When
    loser: When
    always: bool = False
    devices: tuple[str, ...] = DEVICES
    """Where the winner has an effect: elsewhere it takes nobody's place."""


@dataclass(frozen=True)
class Excludes:
    """Two options that must not be set together in one layer; *test* further narrows when (first value, second value)."""

    first: When
    second: When
    test: Callable[[Any, Any], bool] | None = None
    why: str = "they exclude each other, set one of them"

    def holds(self, first: Setting, second: Setting) -> bool:
        if not (self.first.holds(first) and self.second.holds(second)):
            return False
        return self.test is None or self.test(first.value, second.value)


@dataclass(frozen=True)
class Needs:
    """*option* needs one of *others*. Without it: ``refused``, where the source reports an error; ``error``, where it is one here,
    too; ``inert``, where the option merely has no effect."""

    option: When
    others: tuple[When, ...]
    status: str = "refused"
    devices: tuple[str, ...] = DEVICES

    @property
    def others_text(self) -> str:
        return " or ".join(map(str, self.others))


@dataclass(frozen=True)
class Forbids:
    """*option* is refused, or without effect, while *other* is in force; ``off``: as is meant by whoever switched that off."""

    option: When
    other: When
    status: str
    why: str


TRUE = (True,)
MIXED = (
    When("precision_mode", ("allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16")),
    When("precision_mode_v2", ("mixed_float16", "mixed_bfloat16", "mixed_hif8")),
)
PRECISION_MODES = (
    *("force_fp16", "force_fp32", "cube_fp16in_fp32out", "allow_fp32_to_fp16", "allow_fp32_to_bf16"),
    *("allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16", "must_keep_origin_dtype"),
)
IMPLMODE_LIST = When(
    "atc.builtin_impl_mode_ini",
    ("high_precision.ini", "high_performance.ini", "high_precision_for_all.ini", "high_performance_for_all.ini"),
)
PRECISION_MODES_V2 = ("fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "mixed_hif8", "cube_hif8")
NOT_MEASURED = "nothing is measured under deterministic=ON, since another choice gives other bits"
DUMPS_BY_FILE = When(
    "dump_config",
    test=lambda c: (
        c.get("common_dump_settings", {}).get("op_debug_mode", 0) == 0 and c.get("e2e_dump_settings", {}).get("enable", True)
    ),
    words="with op_debug_mode 0",
)
KEEPS_SOURCES = When(
    "op_debug_config",
    test=lambda c: not {"dump_cce", "dump_loc"}.isdisjoint(c.get("op_debug_config", ())),
    words="with dump_cce or dump_loc",
)
WITHOUT_LIST = When("op_debug_config", test=lambda c: not c.get("op_debug_list"), words="without op_debug_list")
SAME_BITS = (
    (When("deterministic", ("ON",)), "deterministic=ON asks for the same bits in every run"),
    (When("thread_invariant", TRUE), "thread_invariant=True asks for the same bits with any number of threads"),
    (When("batch_invariant", TRUE), "batch_invariant=True asks for the same bits in any batch"),
)

OVERRIDES = (
    Overrides(When("graph_kernel_flags.opt_level", (0,)), When("enable_graph_kernel", TRUE)),
    Overrides(When("graph_kernel_flags.opt_level", (1, 2, 3)), When("enable_graph_kernel", (False,))),
    *(Overrides(When(name, TRUE), When("dump_config"), always=True) for name in ("session.enable_dump", "enable_dump_debug")),
    *(Overrides(When("dump_config"), When(name, (False,))) for name in ("session.enable_dump", "enable_dump_debug")),
    Overrides(When("op_precision_mode"), When("op_select_implmode")),
    Overrides(When("op_precision_mode"), IMPLMODE_LIST),
    Overrides(When("op_precision_mode"), When("optypelist_for_implmode"), always=True),  # which does nothing by itself
    Overrides(When("op_select_implmode"), IMPLMODE_LIST),
    Overrides(When("dynamic_dims"), When("dynamic_inputs_shape_range")),
    *(  # gears say more than ranges, and yield together where these are set further in
        Overrides(When(gears, values), When("dynamic_input", TRUE))
        for gears, values in (("input_shape", ()), ("dynamic_dims", ()), ("dynamic_node_type", (0, 1)))
    ),
    Overrides(When("dynamic_input", TRUE), When("compile_dynamic_mode", (True, False))),
    Overrides(When("use_off_line", (False,)), When("device_target", ("GPU", "Ascend")), always=True),
    Overrides(When("memory_optimize_level", ("O1",)), When("memory_offload", ("ON",)), always=True),
    Overrides(When("memory_offload", ("ON",)), When("mempool_block_size"), always=True, devices=("cuda", "ascend")),
    Overrides(When("session_device_id", test=_any), When("device_id", test=_any)),
    Overrides(When("graph_run_mode", (0,)), When("enable_small_channel", (0,)), always=True),
    Overrides(When("enable_exception_dump", (0, 1, 2)), When("exception_dump", ("0", "1", "2"))),
    Overrides(When("op_debug_level"), When("op_compiler_cache_mode", ("enable", "force")), always=True),
    Overrides(WITHOUT_LIST, When("op_compiler_cache_mode", ("enable", "force")), always=True),
    Overrides(WITHOUT_LIST, When("enable_compile_cache", TRUE), always=True),
    *(  # torch has one cache for graphs and kernels
        Overrides(When("enable_compile_cache", (True, False)), loser, devices=("cpu", "cuda"))
        for loser in (When("op_compiler_cache_mode", ("enable", "force", "disable")), When("op_compiler_cache_dir"))
    ),
)

EXCLUDES = (
    Excludes(When("precision_mode"), When("precision_mode_v2")),
    Excludes(When("session.enable_dump"), When("enable_dump_debug")),
    Excludes(When("compile_dynamic_mode"), When("input_shape")),
    Excludes(When("compile_dynamic_mode"), When("dynamic_dims")),
    Excludes(When("compile_dynamic_mode"), When("dynamic_node_type", (0, 1))),
    Excludes(
        When("input_shape"),
        When("dynamic_dims"),
        test=lambda shape, gears: len(re.findall(r"[:,]-1\b", shape)) != len(gears.partition(";")[0].split(",")),
        why="a gear of dynamic_dims has one size for each -1 of input_shape",
    ),
    Excludes(When("mix_compile_mode"), When("iterations_per_loop", test=_more_than_one, words="above 1")),
    Excludes(When("static_memory_policy", (2, 4)), When("graph_max_parallel_model_num", test=_more_than_one, words="above 1")),
    Excludes(
        When("op_debug_level", (2,)),
        When("op_debug_config", test=lambda c: "oom" in c.get("op_debug_config", ()), words="with oom"),
    ),
    Excludes(
        When("hccl_timeout", test=lambda v: v >= 0),
        When("stream_sync_timeout", test=lambda v: v >= 0),
        test=lambda seconds, milliseconds: seconds == 0 or seconds * 1000 >= milliseconds,
        why="hccl_timeout (seconds) must be shorter than stream_sync_timeout (milliseconds)",
    ),
)

NEEDS = (
    Needs(When("session.enable_dump"), (When("dump_path"),), "error"),
    Needs(When("enable_dump_debug"), (When("dump_path"),), "error"),
    Needs(When("input_shape"), (When("dynamic_dims"),)),
    Needs(When("input_shape"), (When("dynamic_node_type", (0, 1)),)),
    Needs(When("dynamic_dims"), (When("input_shape"),)),
    Needs(When("dynamic_node_type", (0, 1)), (When("input_shape"),)),
    Needs(When("modify_mixlist"), MIXED),
    Needs(When("optypelist_for_implmode"), (When("op_select_implmode", ("high_precision", "high_performance")),)),
    Needs(When("in_out_pair"), (When("mix_compile_mode", TRUE),)),
    Needs(When("variable_placement", ("Host",)), (When("mix_compile_mode", TRUE),)),
    Needs(When("in_out_pair_flag", (True, False)), (When("in_out_pair"),), "inert"),
    Needs(When("local_rank_id", test=_any), (When("local_device_list", test=_any),)),
    Needs(When("local_device_list", test=_any), (When("local_rank_id", test=_any),)),
    Needs(When("graph_max_parallel_model_num", test=_more_than_one, words="above 1"), (When("graph_run_mode", (0,)),)),
    *(
        Needs(When(name), (When("session.enable_dump", TRUE),), "inert")
        for name in ("dump_mode", "dump_step", "dump_data", "dump_layer")
    ),
    Needs(When("debug_dir"), (KEEPS_SOURCES, When("op_debug_level", (1, 2, 4))), "inert", devices=("cpu", "cuda")),
    *(
        Needs(When(name), (When("session.enable_dump", TRUE), DUMPS_BY_FILE), "inert")
        for name in ("dump_format", "quant_dumpable")
    ),
    Needs(When("dump_debug_mode"), (When("enable_dump_debug", TRUE),), "inert"),
    Needs(When("dump_path"), (When("session.enable_dump", TRUE), When("enable_dump_debug", TRUE)), "inert"),
    Needs(When("save_graphs_path"), (When("save_graphs", (1, 2, 3)),), "inert"),
    Needs(When("compile_cache_path"), (When("enable_compile_cache", TRUE),), "inert"),
    Needs(
        When("op_compiler_cache_dir.op_cache_ini"),
        (
            When("op_compiler_cache_mode", ("enable", "force")),
            When("op_compiler_cache_dir"),
            When("enable_compile_cache", TRUE),
        ),
        "inert",
    ),
    Needs(When("aoe_config.job_type"), (When("aoe_tune_mode"),), "inert"),
    Needs(When("work_path"), (When("aoe_mode"), When("aoe_tune_mode", ("offline",))), "inert"),
    Needs(When("aoe_config_file"), (When("aoe_mode"),), "inert"),
    Needs(When("profiling_options"), (When("profiling_mode", TRUE),), "inert"),
    Needs(When("env_config_path.rdr.mode"), (When("env_config_path.rdr.enable", TRUE),), "inert"),
    Needs(When("env_config_path.rdr.path"), (When("env_config_path.rdr.enable", TRUE),), "inert"),
    Needs(When("seed_by_rank", TRUE), (When("seed", test=_any),), "inert"),
    Needs(When("check_bprop_values"), (When("check_bprop", TRUE),), "inert"),
    Needs(When("dynamic_graph_execute_mode"), (When("dynamic_input", TRUE),), "inert"),
    Needs(When("dynamic_inputs_shape_range"), (When("dynamic_input", TRUE),), "inert"),
)

FORBIDS = (
    *(
        Forbids(option, other, "refused", f"it adds in no fixed order, and {why}")
        for other, why in SAME_BITS
        for option in (When("conv_dgrad_algo", ("algo_0",)), When("conv_wgrad_algo", ("algo_0", "algo_3")))
    ),
    Forbids(
        When("customize_dtypes"),
        When("precision_mode", ("must_keep_origin_dtype",)),
        "inert",
        "precision_mode=must_keep_origin_dtype forbids every cast",
    ),
    Forbids(
        When("customize_dtypes"), When("precision_mode_v2", ("origin",)), "inert", "precision_mode_v2=origin forbids every cast"
    ),
    Forbids(
        When("experimental_accelerate_train_mode"),
        When("precision_mode", tuple(m for m in PRECISION_MODES if m not in ("allow_fp32_to_fp16", "must_keep_origin_dtype"))),
        "refused",
        "it needs precision_mode=allow_fp32_to_fp16 or must_keep_origin_dtype, or none",
    ),
    Forbids(
        When("experimental_accelerate_train_mode"),
        When("precision_mode_v2", tuple(m for m in PRECISION_MODES_V2 if m != "origin")),
        "refused",
        "it needs precision_mode_v2=origin, or none",
    ),
    Forbids(When("frozen_variable"), When("graph_run_mode", (1,)), "refused", "weights that are trained cannot be constants"),
    *(
        Forbids(When(name, values), When("graph_run_mode", (1,)), "refused", "it is for inference: graph_run_mode=0, or unset")
        for name, values in (
            *(("input_shape", ()), ("dynamic_dims", ()), ("dynamic_node_type", (0, 1))),
            ("buffer_optimize", ("l2_optimize", "off_optimize")),
        )
    ),
    *(
        Forbids(When(name, values), When("graph_run_mode", (0,)), "refused", "it is for training: graph_run_mode=1, or unset")
        for name, values in (
            *(("hcom_parallel", (True, False)), ("is_tailing_optimization", TRUE)),
            ("experimental_accelerate_train_mode", ()),
        )
    ),
    Forbids(
        When("graph_kernel_flags.online_tuning", test=bool, words="above 0"),
        When("deterministic", ("ON",)),
        "inert",
        NOT_MEASURED,
    ),
    Forbids(When("aoe_tune_mode", ("online",)), When("deterministic", ("ON",)), "inert", NOT_MEASURED),
    Forbids(When("aoe_mode"), When("deterministic", ("ON",)), "inert", NOT_MEASURED),
    Forbids(
        When("aoe_tune_mode", ("offline",)),
        When("aoe_mode"),
        "inert",
        "aoe_mode tunes while the program runs",
    ),
    Forbids(
        When("aoe_tune_mode", ("offline",)),
        When("batch_invariant", TRUE),
        "inert",
        "under batch_invariant=True no measurement is used: each batch size has one of its own",
    ),
    Forbids(
        When("op_compiler_cache_dir"), When("op_compiler_cache_mode", ("disable",)), "off", "op_compiler_cache_mode=disable"
    ),
    Forbids(When("compile_cache_path"), When("enable_compile_cache", (False,)), "off", "enable_compile_cache=False"),
    Forbids(When("profiling_options"), When("profiling_mode", (False,)), "off", "profiling_mode is off"),
    *(
        Forbids(When("op_compiler_cache_dir"), other, "inert", f"{other} ignores the cache")
        for other in (When("op_debug_level"), WITHOUT_LIST)
    ),
)


YIELDING = {
    *(name for r in OVERRIDES for name in (r.winner.name, r.loser.name)),
    *(name for r in EXCLUDES for name in (r.first.name, r.second.name)),
}
"""The options that may have to yield to another one."""


@cache
def _involving(name: str) -> tuple[tuple[Overrides, ...], tuple[Excludes, ...], tuple[Needs, ...], tuple[Forbids, ...]]:
    """The rules that can rule out an option."""
    return (
        tuple(r for r in OVERRIDES if name in (r.winner.name, r.loser.name)),
        tuple(r for r in EXCLUDES if name in (r.first.name, r.second.name)),
        tuple(r for r in NEEDS if r.option.name == name),
        tuple(r for r in FORBIDS if r.option.name == name),
    )


def overrides(winner: Setting, loser: Setting, device: str, *, always: bool | None = None) -> bool:
    """Whether one setting takes the place of another of the same layer on a device; *always*: by a rule of that sort alone."""
    return any(
        r.winner.holds(winner) and r.loser.holds(loser) and always in (None, r.always) and device in r.devices
        for r in _involving(loser.option.name)[0]
    )


def clash(newer: Setting, older: Setting, device: str | None) -> bool:
    """Whether a setting of a higher layer takes the place of another option's in a lower one; *device*: ``None``: on any."""
    rivals, exclusive, *_ = _involving(older.option.name)
    return any(
        not r.always
        and (device is None or device in r.devices)
        and ((r.winner.holds(newer) and r.loser.holds(older)) or (r.winner.holds(older) and r.loser.holds(newer)))
        for r in rivals
    ) or any(r.holds(newer, older) or r.holds(older, newer) for r in exclusive)


@cache
def rivals(name: str) -> frozenset[str]:
    """The options that may take the place of one in a lower layer."""
    pairs = [(r.winner.name, r.loser.name) for r in OVERRIDES if not r.always] + [
        (r.first.name, r.second.name) for r in EXCLUDES
    ]
    return frozenset(other for pair in pairs if name in pair for other in pair if other != name)


def exclusions(settings: list[Setting]) -> Iterator[tuple[Setting, Setting, str]]:
    """The pairs set in one layer that must not be: (first, second, why)."""
    for setting in settings:
        for rule in _involving(setting.option.name)[1]:
            if rule.first.name == setting.option.name:
                for other in settings:
                    if rule.holds(setting, other) and _meet(setting, other):
                        yield setting, other, rule.why


def _meet(a: Setting, b: Setting) -> bool:
    return a.device is None or b.device is None or a.device == b.device


def obstacle(setting: Setting, get: Callable[[str], Setting | None], device: str) -> tuple[str, str] | None:
    """What keeps an option from acting on a device beside the others in force: (status, reason), or ``None``."""
    *_, needs, forbids = _involving(setting.option.name)
    forbidding = [rule for rule in forbids if rule.option.holds(setting) and rule.other.holds(get(rule.other.name))]
    for rule in forbidding:
        if rule.status == "off":
            return rule.status, rule.why
    for need in needs:
        if (
            device in need.devices
            and need.option.holds(setting)
            and not any(other.holds(get(other.name)) for other in need.others)
        ):
            words = "it has no effect without" if need.status == "inert" else "it needs"
            return need.status, f"{words} {need.others_text}"
    return (forbidding[0].status, forbidding[0].why) if forbidding else None


def sentences(name: str) -> list[str]:
    """The rules that apply to an option, for the reference."""
    found = []
    for o in OVERRIDES:
        where = "" if o.devices == DEVICES else f" on {' and '.join(o.devices)}"
        if o.loser.name == name:
            found.append(f"{o.winner} wins over {'it' if not o.loser.values else o.loser}{where}")
        if o.winner.name == name:
            found.append(f"{'it' if not o.winner.values else o.winner} wins over {o.loser}{where}")
    for e in EXCLUDES:
        if name in (e.first.name, e.second.name):
            found.append(f"{e.first} and {e.second}: {e.why}")
    for n in NEEDS:
        if name in (n.option.name, *(other.name for other in n.others)):
            where = "" if n.devices == DEVICES else f" on {' and '.join(n.devices)}"
            found.append(f"{n.option} {'has no effect without' if n.status == 'inert' else 'needs'} {n.others_text}{where}")
    for f in FORBIDS:
        if name in (f.option.name, f.other.name):
            found.append(f"{f.option} is {'inert' if f.status == 'off' else f.status} with {f.other}: {f.why}")
    return found
