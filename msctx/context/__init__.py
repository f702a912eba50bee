"""WHEN options hold: what programs call to set them, for a block, a function or the process, and to read them."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from msctx.context.context_manager import Context
from msctx.context.open_contexts import end_stranded, innermost, stack
from msctx.context.plans import explain
from msctx.context.process_wide import BASE
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import user_frame
from msctx.native.watched_models import OF_PROCESS
from msctx.options import Layer
from msctx.options.layer_sources import layer_of, look_up, with_preset
from msctx.options.settings import Origin
from msctx.outside_dynamo import outside_dynamo


@outside_dynamo
def context(preset: str | PathLike[str] | None = None, /, **options: Any) -> Context:
    """Options that hold inside a with-block, or during each call of a decorated function.

    Args:
        preset: the name of a preset (``"reproducible"`` …), or the path of a YAML file with a ``context:`` section; options given
            with it win.
        options: MindSpore's context options by name. Groups are dictionaries: ``gpu_config={"conv_allow_tf32": False}``.
            An option that is not given is not touched.

    Raises:
        OptionError: with every problem at once; nothing was changed.

    Example::

        with msctx.context(deterministic="ON", seed=0) as ctx:
            train(model, ctx.device)
    """
    origin = f"with-block at {user_frame()[0]}"
    layers = layers_of(options if preset is None else with_preset(preset, options), origin)
    made = Context(layers, origin)
    made.is_unused = bool(layers)
    return made


_known: dict[Any, tuple[Layer, ...]] = {}
"""Where, and which options with plain values, else the content of the layer → their layers: for a with-block in a loop."""
KEPT = 512


def layers_of(options: Mapping[str, Any], origin: str) -> tuple[Layer, ...]:
    """The same object for equal options, from the same place."""
    is_plain = "preset" not in options and {*map(type, options.values())} <= {str, int, bool}
    key: Any = (origin, *((name, type(value), value) for name, value in options.items())) if is_plain else None
    if (found := _known.get(key)) is None:
        layer = layer_of(options, origin)
        if key is None or any(setting.option.format for setting in layer.settings.values()):  # a file may be another next time
            key = layer.key
        if len(_known) > KEPT:
            _known.clear()
        found = _known.setdefault(key, (layer,) if layer.settings else ())
    return found


@outside_dynamo
def set_context(preset: str | PathLike[str] | None = None, /, **options: Any) -> None:
    """Set options for the process until :func:`reset_context`; with-blocks that are opened later win over them.

    What PyTorch keeps per thread, ``precision_mode`` and ``check_bprop`` above all, is set only in the calling thread:
    ``msctx.current().bind(function)``, called there, carries it into others.

    Raises:
        OptionError: with every problem at once; nothing was changed.
        ScopeError: a with-block is open, in whichever thread; nothing was changed.
    """
    set_options(with_preset(preset, options), "set_context")


def set_options(options: Mapping[str, Any], what: str, *, absent: bool = False) -> None:
    """:func:`set_context` for one of its other names, *what*; *absent*: a target that is not here is planned, not refused."""
    layer = layer_of(options, f"{what} at {user_frame()[0]}")
    BASE.start()
    BASE.change({"set_context": layer}, absent=absent)


@outside_dynamo
def reset_context() -> None:
    """Take back everything that :func:`set_context`, MSCTX_* and ``msctx exec`` set: what was found before the first of them is
    restored; so is what with-blocks have set whose threads ended inside them.

    For good: variables of the environment are read once in a process, and not again, nor by what it starts with multiprocessing.

    Raises:
        ScopeError: a with-block is open, in whichever thread; nothing was changed.
    """
    with uninterrupted():
        end_stranded()
        BASE.check_closed()
        BASE.reset()


def get_context(name: str | None = None, *, origin: bool = False) -> Any:
    """The value of an option that is in force in this thread, else MindSpore's default.

    Args:
        name: an option, or a group such as ``"gpu_config"``; ``None``: all that were set, as a dictionary.
        origin: return an :class:`Origin`, (value, where it was set); ``"default"`` if it was not set.
    """
    BASE.start()
    settings, main = current().acting(), innermost().plan.main_device
    if name is None:
        names = [n if settings.get(n, main) else one.spelling for n in settings if (one := settings.get(n))]
        found = {n: look_up(n, settings, main) for n in names}
        return {n: value if origin else value.value for n, value in found.items()}
    value = look_up(name, settings, main)
    return value if origin else value.value


def current() -> Context:
    """The innermost context that is open in this thread; outside every with-block, what holds for the process."""
    return stack.scopes[-1].context if stack.scopes else Context(origin="base", models=OF_PROCESS)


__all__ = ["Context", "Origin", "context", "current", "explain", "get_context", "reset_context", "set_context"]
