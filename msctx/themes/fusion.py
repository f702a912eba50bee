"""What is fused in compiled graphs, and how: graph_kernel_flags, and the options of sessions about passes and constants."""

from __future__ import annotations

from typing import Annotated

from msctx.options import Setting
from msctx.options.grammars import ScopePasses
from msctx.options.kinds import Bool, Path, TextKind
from msctx.options.option import Option, session_option
from msctx.options.policies import ALL, TWINS, WITHOUT_A_TWIN
from msctx.options.rules import NOT_MEASURED, Forbids, Rule, When
from msctx.themes import graph_kernel_flags
from msctx.themes.base import On, Outcome, approximated, as_it_is, by_entry, honoured, inert, refused, translates
from msctx.themes.common import GRAPHS, ONCE, engine_options
from msctx.themes.graph import FROZEN, LEVEL, compiled, fused, hides, ready_made
from msctx.themes.graph_kernel_flags import BY_NAME, DUMP, DUMPS, FLAGS, GROUP

# fmt: off
OPTIONS = (
    Option("graph_kernel_flags",
        Annotated[str, TextKind("flags such as --opt_level=2", comma_list=True, separator=" ", empty=True)], default="",
        example="--opt_level=2 --dump_as_text", content="GRAPH_KERNEL_FLAGS",
        help="Fine control of operator fusion as flags in one text, separated by blanks: --opt_level=0..3 sets how far "
             "fusion goes, --dump_as_text writes what the passes did, --path=FILE reads flags from a JSON file. A bare flag means "
             "true; a list of flags is taken too."),
    *graph_kernel_flags.OPTIONS,
    session_option("fusion_switch_file", Path, example="fusion_switch.json", ge="ge.fusionSwitchFile", content="FUSION_SWITCH",
        help="A JSON file that switches fusion passes on or off by name, graph passes and kernel fusion apart; ALL stands "
             "for a whole group, and single names win over it."),
    session_option("enable_scope_fusion_passes", ScopePasses,
        example="ScopeLayerNormPass,ScopeClipBoxesPass", ge="ge.exec.enableScopeFusionPasses",
        help="Switches fusion passes on that are off unless named: each replaces one pattern, such as a layer norm written "
             "out, by one operator."),
    session_option("frozen_variable", Bool, default=False, example=True,
        help="Compiles the weights into the graph as constants, so that the compiler may fold and repack them; for inference, "
             "in code that computes no gradients (torch.no_grad)."),
    Option("disable_format_transform", Bool, default=False, example=True, devices=("cpu", "cuda"),
        help="true keeps convolutions in the layout NCHW; false allows compiled models to be moved to channels_last where "
             "that is faster (inductor's layout_optimization). MindSpore knows it for CUDA alone."),
)

RULES: tuple[Rule, ...] = (
    Forbids(When("frozen_variable"), When("graph_run_mode", (1,)), "refused", "weights that are trained cannot be constants"),
    Forbids(When("graph_kernel_flags.online_tuning", test=bool, words="above 0"), When("deterministic", ("ON",)), "inert",
        NOT_MEASURED),
)
# fmt: on

BY_CANN = "CANN's graph engine fuses by its own rules, and has no such flags"
EXTRAS = (DUMP, "enable_debug_mode", "online_tuning")
"""Flags that add something to fusion: off, they ask an engine that knows no flags for nothing."""
AS_TEXT = f"torchair writes each graph, as the engine gets it, into the folder {DUMPS}; passes and kernels are not written"
FROZEN_BY_CANN = "CANN takes the weights for constants (frozen_parameter): their memory must stay where it is"
AGGRESSIVE = "kernels that share no data are combined, too, which may be slower"
KEEP_CONVOLUTIONS = "the requested algorithm wins: with {} inductor would compute convolutions and products without it"


translates("enable_scope_fusion_passes")(lambda on, setting: compiled(on))


def _is_off(on: On) -> bool:
    return fused(on) is False or (on.device != "ascend" and ready_made(on))


def _not_fused(on: On) -> str:
    name = next((n for n in (LEVEL, "enable_graph_kernel") if on.get(n) is not None), "jit_compile")
    return f"nothing is fused: {name}={on.get(name)!r}"


@translates("graph_kernel_flags")
def _graph_kernel_flags(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return honoured(cause="its flags are options of their own")
    return compiled(on) if setting.value.strip() else as_it_is()


@translates(LEVEL)
def _opt_level(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend" and setting.value > 1:
        return compiled(on, differs=f"as 1: {BY_CANN}")
    return compiled(on, AGGRESSIVE if setting.value == 3 else "")


@translates(*(f"{GROUP}.{flag.name}" for flag in FLAGS if f"{GROUP}.{flag.name}" != LEVEL))
def _flag(on: On, setting: Setting) -> Outcome:
    row = BY_NAME[setting.option.name.removeprefix(f"{GROUP}.")]
    value = setting.value.lower().replace("-", "_") if isinstance(setting.value, str) else setting.value
    if why := row.holds.get(value):
        return as_it_is(why)
    if on.device == "ascend":
        if row.name in EXTRAS and not setting.value:
            return as_it_is()
        if row.name != DUMP:
            return refused(row.why_not or BY_CANN)
    if why := row.why_not or row.refused.get(setting.value):
        return refused(why)
    if _is_off(on):
        return inert(_not_fused(on)) if setting.value else as_it_is(_not_fused(on))
    if hides(on, setting.option.name):
        return inert(KEEP_CONVOLUTIONS.format("max_autotune"))
    return compiled(on, differs=AS_TEXT if on.device == "ascend" else "")


@translates("fusion_switch_file")
def _fusion_switch_file(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return honoured({"torch.npu.engine_options": engine_options(on)}, f"{GRAPHS}; {ONCE}")
    if _is_off(on):
        return inert(_not_fused(on))
    entries = {(g, n): _idle_pass(on, n, s) for g, found in setting.content["Switch"].items() for n, s in found.items()}
    return by_entry(entries, compiled(on))


def _idle_pass(on: On, name: str, state: str) -> str:
    """Why a pass has no switch here, or ``""``."""
    if name in WITHOUT_A_TWIN:
        return f"{name}: {WITHOUT_A_TWIN[name]}"
    if name not in TWINS and name != ALL:
        return f"{name} is no pass that is known"
    return f"{name}: {KEEP_CONVOLUTIONS.format('it')}" if state == "on" and hides(on, name) else ""


@translates("frozen_variable")
def _frozen_variable(on: On, setting: Setting) -> Outcome:
    if not setting.value:
        return as_it_is()
    if on.device == "ascend":
        return compiled(on, FROZEN_BY_CANN)
    if _is_off(on):
        return inert(_not_fused(on))
    if hides(on, FROZEN):
        return refused(KEEP_CONVOLUTIONS.format("constant weights"))
    freezing = {"torch.inductor.freezing": True}  # Dynamo looks at it, too, before a back end is called
    return compiled(on, "where no gradients are computed (torch.no_grad or inference_mode)", more=freezing)


@translates("disable_format_transform")
def _disable_format_transform(on: On, setting: Setting) -> Outcome:
    """Inductor is what moves models between memory formats here; on a CPU, and for half precision on CUDA, it wants channels_last."""
    differs = (
        "holds for code that inductor compiles inside, unless torch.compile is given that option itself; eager torch never changes "
        "the memory format of a model"
    )
    return approximated({"torch.inductor.layout_optimization": not setting.value}, differs)
