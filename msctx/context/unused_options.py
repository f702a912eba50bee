"""Options that a scope or a run has set and that found nothing to act on: a warning at its end reports them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from msctx.native import watched_models
from msctx.options import Setting, option_of
from msctx.plan import Plan, Row
from msctx.themes.common import SPEED_UP

if TYPE_CHECKING:
    from torch import nn

ON_MODELS = ("models.recompute", "models.parameters", "models.weight_format", "session.graph_run_mode")
"""The switches that act on any watched model: in graph mode memory_optimize_level is the compiler's."""
AS_THEY_ARE = (None, False, "contiguous", "training")
"""Values of these that request nothing of a model."""
GRADIENTS, GATHERED = "models.gradients_", "models.gathered_ahead_"
KINDS = {
    GRADIENTS: "DistributedDataParallel models that ctx.watch names",
    GATHERED: "FSDP2 modules of models that ctx.watch names",
}
"""How the names of switches begin → which watched models they act on."""
IN_CODE = "torch.dynamo.apart"
"""The switch that such an option has, too, where it acts on code that torch.compile makes."""
ON_SOMETHING = ("models.", "session.", "native.precision.", IN_CODE)
"""How the names of the switches begin that act on watched models, on code, or on what a session runs."""


class Ran:
    count = 0  # how often a session has run a function in this process


Moment = tuple[int, int]


def now() -> Moment:
    """How often models had begun or ceased to be acted on, and how often a session had run a function."""
    return watched_models.times, Ran.count


def unmet(plan: Plan, settings: Collection[Setting], since: Moment) -> list[str]:
    """Warnings for *settings* that have found nothing *since* then: no watched model or module, no code, and no run of a session."""
    own = {setting.spelling for setting in settings}
    found = (text for row in plan.rows if row.spelling in own for text in _idle(row, since))
    return [*dict.fromkeys((*_unnamed(settings, since), *found))]


def _idle(row: Row, since: Moment) -> Iterator[str]:
    name, switches = f"{row.spelling}={row.value} did nothing", row.assignments
    in_run = any(switch.startswith("session.") for switch in switches) and row.value != option_of(row.option).default
    times, ran = since
    if in_run and Ran.count == ran:
        yield f"{name}: it acts on functions that a session runs, msctx.session(...).run"
    on_models = any(switches.get(switch) not in AS_THEY_ARE for switch in ON_MODELS)
    if on_models and watched_models.times == times and not watched_models.OPEN:
        yield f"{name} to any model: call msctx.current().watch(model) while it is in force"
    if places := _places(row, times):
        yield f"{name}: it acts on {' and on '.join(places)}; there was none"


def _places(row: Row, since: int) -> list[str]:
    """The kinds of models and code that a row's option acts on, where there was none."""
    kinds = [start for start in KINDS if any(value and name.startswith(start) for name, value in row.assignments.items())]
    places = [KINDS[start] for start in kinds]
    if row.value and IN_CODE in row.assignments and row.option.startswith(SPEED_UP):
        from msctx.switches import torch_compiler

        places.append("code that torch.compile makes inside the block")
        word = f"{row.option.removeprefix(f'{SPEED_UP}.')}={row.value}"
        if any(word in content for content in [*torch_compiler.compiled]):  # a later entry may run what an earlier one compiled
            return []
    models = watched_models.models()
    is_any_gone = watched_models.last_end > since or len(models) < len(watched_models.OPEN)
    return [] if kinds and (is_any_gone or any(_fits(model, start) for model in models for start in kinds)) else places


def _fits(model: nn.Module, kind: str) -> bool:
    """FSDP2's, too, for gradients: communication.py warns of them itself."""
    from msctx.memory import ddp_and_fsdp

    is_parallel = kind == GRADIENTS and next(ddp_and_fsdp.data_parallel(model), None) is not None
    return is_parallel or next(ddp_and_fsdp.modules(model), None) is not None


def _unnamed(settings: Collection[Setting], since: Moment) -> list[str]:
    """Warnings for names in files that no watched module has; none, if a watched model was left since then."""
    paths = {path for model in [*watched_models.OPEN] for path in model.paths}
    return [
        f"{setting.spelling}: no module is named {name}; ctx.watch(model) makes the names of a model's modules known"
        for setting in settings
        if setting.option.name in ("op_precision_mode", "customize_dtypes") and watched_models.last_end <= since[0]
        for name in (setting.content or {}).get("ByNodeName", ())
        if not any(fnmatchcase(path, name) for path in paths)
    ]
