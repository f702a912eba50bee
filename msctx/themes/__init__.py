"""All options: one file a theme declares them, states the rules between them and translates them. Pure: imports no torch."""

from msctx.options import UNSET, registry, rules
from msctx.options.precision_policy import PRECISION
from msctx.themes import (
    cache,
    cann_session,
    convolution_and_algorithm_policy,
    debug,
    determinism,
    device_and_threads,
    distributed,
    graph,
    matmul_and_tf32,
    memory,
    observe,
    precision,
    tuning,
)
from msctx.themes.base import AS_FOUND, Facts, On, Outcome, as_it_is, inert, refused
from msctx.themes.convolution_and_algorithm_policy import BY_NAME, INVARIANT, NATIVE
from msctx.themes.memory import POOL, SHOW_FREE
from msctx.themes.observe import OBSERVERS
from msctx.themes.tuning import TUNING

THEMES = (
    *(device_and_threads, determinism, memory, convolution_and_algorithm_policy, matmul_and_tf32, precision, tuning, graph),
    *(cache, observe, debug, distributed, cann_session),
)
THEME_OF = {option.name: theme for theme in THEMES for option in theme.OPTIONS}
for theme in THEMES:
    registry.declare(theme.OPTIONS)
    rules.declare(theme.RULES)
NEED_CORE = frozenset(
    (*NATIVE, *PRECISION, *POOL, *TUNING, *OBSERVERS, "matmul_allow_tf32", "experimental_accelerate_train_mode")
)
"""The options for which the native core may be built and loaded."""


def translate(on: On) -> dict[str, Outcome | None]:
    """The outcome of each option that is set for a device; ``None``: the device does not show it."""
    found: dict[str, Outcome | None] = {}
    for name, setting in on.found.items():
        option = setting.option
        if option.replaced_by:
            found[name] = inert("deprecated and without effect", f"use {option.replaced_by}")
        elif name in on.obstacles:
            found[name] = on.obstacles[name]
        else:
            is_here, is_ours = on.device in option.devices, option.source == "msctx"
            outcome = THEME_OF[name].translate(on, setting) if is_here else inert(f"it has no meaning on {on.device}")
            is_so = setting.value == option.default if is_ours else not (is_here or setting.value or option.default is UNSET)
            found[name] = as_it_is() if is_so and outcome and outcome.status == "inert" else outcome
    for name, setting in on.found.items():
        keys = [found[s.option.name] for s in on.found.values() if s.via == setting.spelling]
        if setting.option.content and keys and all(key and key.status == "refused" for key in keys):
            found[name] = refused("each of its keys is refused")
    return found


__all__ = ["AS_FOUND", "BY_NAME", "INVARIANT", "NEED_CORE", "SHOW_FREE", "THEMES", "Facts", "On", "Outcome", "translate"]
