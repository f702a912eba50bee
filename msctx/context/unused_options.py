"""Options that a scope or a run has set and that found nothing to act on: a warning at its end reports them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from msctx.context.plans import Moment
from msctx.native import watched_models
from msctx.native.counter_lifetimes import MET
from msctx.options import Setting, option_of
from msctx.plan import Plan, Row
from msctx.themes.shared_by_themes import ALONE, SPEED_UP

ON_MODELS = ("models.recompute", "models.parameters", "models.weight_format", "session.graph_run_mode")
"""The switches that act on any watched model: in graph mode memory_optimize_level is the compiler's."""
AS_THEY_ARE = (None, False, "contiguous", "training")
"""Values of these that request nothing of a model."""
DDP = "DistributedDataParallel models that ctx.watch names"
KINDS = {
    "models.gradients_": (DDP, watched_models.PARALLEL),  # ddp_and_fsdp_communication.py warns of FSDP2's itself
    "models.gathered_ahead_": ("FSDP2 modules of models that ctx.watch names", {"FSDPModule"}),
    "observers.replicas": (DDP, {"DistributedDataParallel"}),
}
"""How the names of switches begin → which watched models they act on, in words and as kinds."""
IN_CODE = "torch.dynamo.apart"
"""The switch that such an option has, too, where it acts on code that torch.compile makes."""
ON_SOMETHING = (
    *("models.", "session.", "native.precision.", IN_CODE),
    *("graph.compilation", "observers.replicas", "observers.dump"),
)
"""How the names of the switches begin that act on watched models, on code, or on what a session runs."""


def unmet(plan: Plan, settings: Collection[Setting], since: Moment) -> list[str]:
    """Warnings for *settings* that have found nothing *since* then: no watched model or module, no code, and no run of a session."""
    own = {setting.spelling for setting in settings}
    found = (text for row in plan.rows if row.spelling in own for text in _idle(row, since, plan.strict))
    return [*dict.fromkeys((*_unnamed(settings, since), *found))]


def _idle(row: Row, since: Moment, strict: bool) -> Iterator[str]:
    name, switches = f"{row.spelling}={row.value} did nothing", row.assignments
    is_requested = row.value != option_of(row.option).default
    in_run = any(switch.startswith("session.") for switch in switches) and is_requested
    if in_run and MET["run"] == since["run"]:
        yield f"{name}: it acts on functions that a session runs, msctx.session(...).run"
    if ALONE in row.reason and is_requested and MET["call"] == since["call"]:
        yield f"{name}: it acts on functions of msctx.jit, and on modules with mode=GRAPH_MODE; none was called"
    is_watched = watched_models.times != since["times"] or bool(watched_models.OPEN)
    if not is_watched and any(switches.get(switch) not in AS_THEY_ARE for switch in ON_MODELS):
        yield f"{name} to any model: call msctx.current().watch(model) while it is in force"
    if places := _places(row, since):
        yield f"{name}: it acts on {' and on '.join(places)}; there was none"
    if dump := switches.get("observers.dump"):
        from msctx.observers.dump import reader_of

        yield from reader_of(dump).unmet()
    if strict and is_watched and switches.get("models.recompute") and MET["block"] == since["block"]:  # else watch() warns
        from msctx.memory.recompute import blocks

        if not any(map(blocks, watched_models.models())):
            yield f"{name}: no watched model has blocks to recompute"


def _places(row: Row, since: Moment) -> list[str]:
    """The kinds of models and code that a row's option acts on, where there was none."""
    found = [KINDS[start] for start in KINDS if any(on and name.startswith(start) for name, on in row.assignments.items())]
    places, kinds = [words for words, _ in found], {kind for _, kinds in found for kind in kinds}
    if row.value and IN_CODE in row.assignments and row.option.startswith(SPEED_UP):
        from msctx.switches import torch_compiler

        places.append("code that torch.compile makes inside the block")
        own = row.option.removeprefix(f"{SPEED_UP}."), str(row.value)
        if any(own in content for content in [*torch_compiler.compiled]):  # a later entry may run what an earlier one compiled
            return []
    if kinds:
        watched_models.look([*watched_models.OPEN])  # a model may have been wrapped since it was watched
    is_met = any(MET[kind] > since[kind] or any(kind in model.kinds for model in [*watched_models.OPEN]) for kind in kinds)
    return [] if is_met else places


def _unnamed(settings: Collection[Setting], since: Moment) -> list[str]:
    """Warnings for names in files that no watched module has; none, if a watched model was left since then."""
    paths = {path for model in [*watched_models.OPEN] for path in model.paths}
    return [
        f"{setting.spelling}: no module is named {name}; msctx.current().watch(model) makes the names of a model's modules known"
        for setting in settings
        if setting.option.name in ("op_precision_mode", "customize_dtypes") and watched_models.last_end <= since["times"]
        for name in (setting.content or {}).get("ByNodeName", ())
        if not any(fnmatchcase(path, name) for path in paths)
    ]
