"""What is fused in compiled graphs, and how: graph_kernel_flags, and the options of sessions about passes and constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msctx.effects import graph_engine
from msctx.effects.algorithms import POLICY, asked_of, conv_policy, only_records
from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, as_it_is, by_entry, effect, honoured, inert, refused
from msctx.effects.graph_engine import GRAPHS, ONCE
from msctx.options.conv_policy import RECORDED, ConvPolicy
from msctx.options.conv_rules import DIRECTIONS, PRODUCT
from msctx.options.fusion_passes import ALL, TWINS, WITHOUT_A_TWIN
from msctx.options.graph_kernel_flags import BY_NAME, DUMP, DUMPS, FLAGS, GROUP

BY_CANN = "CANN's graph engine fuses by rules of its own, and has none of these flags"
EXTRAS = (DUMP, "enable_debug_mode", "online_tuning")
"""Flags that add something to fusion: off, they ask an engine that knows no flags for nothing."""
AS_TEXT = (
    f"torchair writes each graph, as the engine gets it, into the folder {DUMPS}: the engine's passes and kernels are its own"
)
FROZEN_BY_CANN = "CANN takes the weights for constants (frozen_parameter): their memory must stay where it is"
LEVEL = "graph_kernel_flags.opt_level"
AGGRESSIVE = "kernels that share no data are combined, too, which may be slower"
KEEP_CONVOLUTIONS = (
    "an algorithm is asked for, and with {} inductor would compute convolutions and products without it: the algorithm wins"
)
TUNED, FROZEN, AS_PRODUCT = f"{GROUP}.online_tuning", "frozen_variable", "ConvToFullyConnectionFusionPass"


def fused(want: Want) -> bool | None:
    """Whether inductor fuses; None: as torch.compile does unasked."""
    level, enabled = want.other(LEVEL), want.other("enable_graph_kernel")
    found: bool | None = enabled if level is None else level > 0
    return found


def ready_made(want: Want) -> bool:
    """Whether graphs run kernels of the libraries, one for each node, but on an NPU, whose engine has the option itself."""
    return all(want.other(name) is None for name in (LEVEL, "enable_graph_kernel")) and want.other("jit_compile") == "false"


def _is_off(want: Want) -> bool:
    return fused(want) is False or (want.device != "ascend" and ready_made(want))


def asked(want: Want) -> dict[str, Any]:
    """What all options of this file come to, as fields of :class:`msctx.options.graph.Compilation`."""
    flags = []
    for flag in FLAGS:
        s = _on_its_device(want, flag.devices).in_force(f"{GROUP}.{flag.name}") if flag.settings else None
        if s is not None and s.value not in flag.refused and not _hides(want, s.option.name):
            flags.append((flag.name, s.value))
    scope = want.in_force("enable_scope_fusion_passes")
    return {
        "fused": fused(want),
        "ready_made": ready_made(want),
        "flags": tuple(flags),
        "fusion_switches": tuple(_switches(want)),
        "scope_passes": tuple(scope.value.split(",")) if scope else (),
        "weights": want.device == "cpu" and _has_algorithm(want, *DIRECTIONS),
        "epilogues": _has_algorithm(want, "fprop"),
        "products": _products(want),
        "frozen": want.in_force(FROZEN) is not None and want.other(FROZEN) and not _hides(want, FROZEN),
    }


def _has_algorithm(want: Want, *directions: str) -> bool:
    """Whether convolutions that inductor compiles for the CPU may have one."""
    names = asked_of(replace(want, device="cpu"), *directions)
    return fused(want) is not False and any(name != RECORDED for _, name in names)


def _products(want: Want) -> ConvPolicy | None:
    """The policy by which linear layers may take what follows them into their call."""
    on_cpu = replace(want, device="cpu")
    if fused(want) is False or all(name == RECORDED for _, name in asked_of(on_cpu, PRODUCT)):
        return None
    policy: ConvPolicy | None = conv_policy(on_cpu).get(POLICY["cpu"])
    return policy and policy.of_products()


def _on_its_device(want: Want, devices: tuple[str, ...]) -> Want:
    """As on a device that has the option: what compiles is one for all of them."""
    return want if want.device in devices else replace(want, device=devices[0])


def _hides(want: Want, name: str) -> bool:
    """Whether an option would take convolutions away from the algorithm that is asked for, on whichever device."""
    there = [replace(want, device=device) for device in POLICY]
    return name in (TUNED, FROZEN, AS_PRODUCT) and any(conv_policy(one) and not only_records(one) for one in there)


def _switches(want: Want) -> list[tuple[str, str, str]]:
    setting = want.in_force("fusion_switch_file")
    found = setting.content["Switch"] if setting else {}
    return [(g, n, s) for g, names in found.items() for n, s in names.items() if not (s == "on" and _hides(want, n))]


def compiled(want: Want, reason: str = "", differs: str = "", more: dict[str, Any] | None = None) -> Outcome:
    from msctx.effects.graph_mode import ALONE, BY_TORCHAIR, compilation

    found = {"graph.compilation": compilation(want)} | (more or {})
    if want.device == "ascend":
        reason = "; ".join(filter(None, (reason, BY_TORCHAIR)))
    alone = "" if want.other("mode") == 0 else ALONE
    if differs:
        return approximated(found, "; ".join(filter(None, (differs, alone))))
    return honoured(found, "; ".join(filter(None, (reason, alone))))


def _not_fused(want: Want) -> str:
    name = next((n for n in (LEVEL, "enable_graph_kernel") if want.other(n) is not None), "jit_compile")
    return f"nothing is fused: {name}={want.other(name)!r}"


@effect("graph_kernel_flags")
def graph_kernel_flags(want: Want) -> Outcome:
    if want.device == "ascend":
        return honoured(reason="its flags are options of their own")
    return compiled(want) if want.value.strip() else NOTHING_ASKED


@effect(LEVEL)
def opt_level(want: Want) -> Outcome:
    if want.device == "ascend" and want.value > 1:
        return compiled(want, differs=f"as 1: {BY_CANN}")
    return compiled(want, AGGRESSIVE if want.value == 3 else "")


@effect(*(f"{GROUP}.{flag.name}" for flag in FLAGS if f"{GROUP}.{flag.name}" != LEVEL))
def flag(want: Want) -> Outcome:
    row = BY_NAME[want.option.name.removeprefix(f"{GROUP}.")]
    if want.device == "ascend":
        if row.name in EXTRAS and not want.value:
            return NOTHING_ASKED
        if row.name != DUMP:
            return refused(row.why_not or BY_CANN)
    elif why := row.holds.get(want.value.lower() if isinstance(want.value, str) else want.value):
        return as_it_is(why)
    if why := row.why_not or row.refused.get(want.value):
        return refused(why)
    if _is_off(want):
        return inert(_not_fused(want)) if want.value else as_it_is(_not_fused(want))
    if _hides(want, want.option.name):
        return inert(KEEP_CONVOLUTIONS.format("max_autotune"))
    return compiled(want, differs=AS_TEXT if want.device == "ascend" else "")


@effect("fusion_switch_file")
def fusion_switch_file(want: Want) -> Outcome:
    if want.device == "ascend":
        return honoured({"torch.npu.engine_options": graph_engine.engine_options(want)}, f"{GRAPHS}; {ONCE}")
    if _is_off(want):
        return inert(_not_fused(want))
    entries = {(g, n): _idle_pass(want, n, s) for g, found in want.content["Switch"].items() for n, s in found.items()}
    return by_entry(entries, compiled(want))


def _idle_pass(want: Want, name: str, state: str) -> str:
    """Why a pass has no switch here, or ``""``."""
    if name in WITHOUT_A_TWIN:
        return f"{name}: {WITHOUT_A_TWIN[name]}"
    if name not in TWINS and name != ALL:
        return f"{name} is no pass that is known"
    return f"{name}: {KEEP_CONVOLUTIONS.format('it')}" if state == "on" and _hides(want, name) else ""


@effect("enable_scope_fusion_passes")
def enable_scope_fusion_passes(want: Want) -> Outcome:
    return compiled(want)


@effect("frozen_variable")
def frozen_variable(want: Want) -> Outcome:
    if not want.value:
        return NOTHING_ASKED
    if want.device == "ascend":
        return compiled(want, FROZEN_BY_CANN)
    if _is_off(want):
        return inert(_not_fused(want))
    if _hides(want, FROZEN):
        return refused(KEEP_CONVOLUTIONS.format("constant weights"))
    return compiled(
        want,
        "where no gradients are computed (torch.no_grad or inference_mode)",
        more={"torch.inductor.freezing": True},  # Dynamo looks at it, too, before a back end is called
    )
