"""Options that a scope or a run has set and that found nothing to act on: a warning at its end reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from msctx.native import watched
from msctx.options import Layer, option_of
from msctx.plan import Plan, Row
from msctx.themes.common import SPEED_UP

if TYPE_CHECKING:
    from torch import nn


def _ddp(model: nn.Module) -> bool:
    """FSDP2's, too: reductions.py warns of them itself."""
    from msctx.memory import reductions

    return next(reductions.data_parallel(model), None) is not None or _fsdp(model)


def _fsdp(model: nn.Module) -> bool:
    from msctx.memory import prefetch

    return next(prefetch.modules(model), None) is not None


WATCHING = (
    ("memory_optimize_level", "O1"),
    ("external_weight", True),
    ("variable_placement", "Host"),
    ("variable_format_optimize", True),
    ("graph_run_mode", 0),
)
"""The values that request something of any watched model."""
ON_MODELS = ("models.recompute", "models.parameters", "models.weight_format", "session.graph_run_mode")
"""The switches that do it: in graph mode memory_optimize_level is the compiler's."""
COMMUNICATING = (
    ("hcom_parallel", False),
    (f"{SPEED_UP}.enable_grad_comm_opt", False),
    (f"{SPEED_UP}.enable_task_opt", True),
    (f"{SPEED_UP}.enable_opt_shard_comm_opt", True),
    (f"{SPEED_UP}.recompute_comm_overlap", True),
    (f"{SPEED_UP}.matmul_grad_comm_overlap", True),
    (f"{SPEED_UP}.enable_concat_eliminate_opt", True),
    (f"{SPEED_UP}.compute_communicate_fusion_level", 3),
)
"""The values that request something of one kind of model, or of compiled code."""
KINDS: dict[str, tuple[str, Callable[[nn.Module], bool]]] = {
    "models.gradients_": ("DistributedDataParallel models that ctx.watch names", _ddp),
    "models.gathered_ahead_": ("FSDP2 modules of models that ctx.watch names", _fsdp),
}
"""How the names of switches begin → which watched models they act on."""
IN_CODE = "torch.dynamo.apart"
"""The switch that such an option has, too, where it acts on code that torch.compile makes."""


ON_SOMETHING = ("models.", "session.", "native.precision.", IN_CODE)
"""How the names of the switches begin that act on watched models, on code, or on what a session runs."""


def unwatched(plan: Plan, layers: Iterable[Layer], since: int) -> list[str]:
    """Warnings for options of *layers* that act on watched models or in compiled code, of which there has been none since then."""
    own = {spelling for layer in layers for spelling in layer.settings}
    rows = [row for row in plan.rows if row.spelling in own]
    found = []
    if watched.times == since and not watched.OPEN:
        asking = [r for r in rows if (r.option, r.value) in WATCHING and any(map(r.assignments.get, ON_MODELS))]
        found += [f"{r.spelling}={r.value} did nothing to any model: call ctx.watch(model) inside the block" for r in asking]
    found += [text for row in rows if (row.option, row.value) in COMMUNICATING for text in _unmet(row, since)]
    return [*dict.fromkeys(found)]


def unmatched(layers: Iterable[Layer], since: int) -> list[str]:
    """Warnings for names in the files of *layers* that no watched module has; none, if a watched model was left since then."""
    paths = {path for model in [*watched.OPEN] for path in model.paths}
    settings = [setting for layer in layers for setting in layer.settings.values() if watched.last_end <= since]
    return [
        f"{setting.spelling}: no module is named {name}; ctx.watch(model) makes the names of a model's modules known"
        for setting in settings
        if setting.option.name in ("op_precision_mode", "customize_dtypes")
        for name in (setting.content or {}).get("ByNodeName", ())
        if not any(fnmatchcase(path, name) for path in paths)
    ]


def _unmet(row: Row, since: int) -> Iterator[str]:
    kinds = [kind for start, kind in KINDS.items() if any(name.startswith(start) for name in row.assignments)]
    places = [words for words, _ in kinds]
    if IN_CODE in row.assignments:
        places.append("code that torch.compile makes inside the block")
        if _is_in_code(f"{row.option.removeprefix(f'{SPEED_UP}.')}={row.value}"):
            return
    models = watched.models()
    is_any_gone = watched.last_end > since or len(models) < len(watched.OPEN)
    if not places or (kinds and is_any_gone) or any(fits(model) for _, fits in kinds for model in models):
        return
    yield f"{row.spelling}={row.value} did nothing: it acts on {' and on '.join(places)}; there was none"


def _is_in_code(word: str) -> bool:
    """Whether code was compiled under an option; a later entry may run what an earlier one has compiled."""
    from msctx.switches import torch_dynamo

    return any(word in content for content in [*torch_dynamo.compiled])


def unrun(plan: Plan, layers: Iterable[Layer]) -> list[str]:
    """Warnings for options of *layers* that act in a session's run(), which nobody has called."""
    own = {spelling for layer in layers for spelling in layer.settings}
    asking = [r for r in plan.rows if r.spelling in own and r.value != option_of(r.option).default]
    acting = [r for r in asking if any(switch.startswith("session.") for switch in r.assignments)]
    found = (
        f"{r.spelling}={r.value} did nothing: it acts on functions that a session runs, msctx.session(...).run" for r in acting
    )
    return [*dict.fromkeys(found)]
