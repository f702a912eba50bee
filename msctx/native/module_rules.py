"""Precision policies inside modules: in the calls of the watched modules that rules name, while such a policy is in force somewhere.

They come into force outside compiled code: Dynamo breaks its graph at a named module. If its class is not torch's own, its forward
pass is compiled for itself, guarded by the policy inside it; torch's own modules run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch.backends import mha
from torch.compiler import is_exporting

from msctx import notices
from msctx.native import module_calls, precision, watched
from msctx.native.counting import Held

if TYPE_CHECKING:
    from torch import nn


@dataclass(eq=False)
class _Entry:
    """The call of a named module that runs: what it puts in force, and what was before. Calling it leaves it."""

    place: watched.Place
    policies: precision.Policies
    before: int
    number: int

    def __call__(self) -> None:
        """Restore what was in force before, unless somebody else has put something in force since."""
        policies = precision.here.policies
        if policies is not self.policies:  # a context was left open inside, or the base was changed
            precision.switch(_number(policies, [entry for entry in _entries() if entry is not self]))
        elif (found := precision.switch(self.before)) != self.number:  # without what an autocast overrules of it
            precision.switch(found)


def _entries() -> list[_Entry]:
    """Those of this thread, the outermost first."""
    return [leave for call in module_calls.here.calls for leave in call.leaves if isinstance(leave, _Entry)]


def _enter(module: nn.Module, call: module_calls.Call) -> None:
    policies = precision.here.policies
    if call.place is not None and (number := _inside(call.place, policies)) is not None:
        _look_for_export()
        call.leaves.append(_Entry(call.place, policies, precision.number_here(), number))
        precision.switch(number)


def _look_for_export() -> None:
    """torch.export captures autocasts alone."""
    if is_exporting():  # one of the threads
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        if get_proxy_mode() is not None:
            notices.warn(_LOST)


_LOST = (
    "torch.export leaves out the precision rules for single modules: what is exported computes otherwise than the model does here;"
    " use rules for types of operators, or a mode, instead"
)


def _inside(place: watched.Place, policies: precision.Policies) -> int | None:
    """The number of *policies* inside a module; ``None``: no rule acts on it."""
    key = tuple(policies.items())
    models = reversed(place.paths.items())
    found = (_named(path, key) for model, path in models if precision.here.acts_on.has(model))
    return next((number for number in found if number is not None), None)


@lru_cache(1 << 16)
def _named(path: str, policies: tuple[tuple[str, precision.Policy], ...]) -> int | None:
    """The number of policies inside a module of this path; ``None``: no rule names it."""
    named = {device: policy.modules[name] for device, policy in policies if (name := _name(path, policy)) is not None}
    return precision.combination_of({device: policy.number for device, policy in policies} | named) if named else None


def _name(path: str, policy: precision.Policy) -> str | None:
    """The name in a policy that applies to a path: it itself, else the first pattern."""
    return path if path in policy.modules else next((name for name in policy.modules if fnmatchcase(path, name)), None)


def number_of(policies: precision.Policies) -> int:
    """What these policies come to here: inside the module whose forward pass is running, if their rules name one."""
    module_calls.drop_ended()
    return _number(policies, _entries())


def _number(policies: precision.Policies, entries: list[_Entry]) -> int:
    number = _inside(entries[-1].place, policies) if entries else None
    if number is not None:
        return number
    return precision.combination_of({device: policy.number for device, policy in policies.items()}) if policies else -1


# --- compiled code ----------------------------------------------------------------------------------------------------


def _is_named(module: nn.Module) -> bool:
    """Whether a rule names a module, which is not the one that is compiled as a whole, inside its rules."""
    policies = tuple(precision.here.policies.items())
    if not any(policy.modules for _, policy in policies) or (place := watched.place_of(module)) is None:
        return False
    if any(entry.place.module is place.module for entry in _entries()[-1:]):
        return False
    return any(_named(path, policies) is not None for path in place.paths.values())


def _keep_out(translator: Any) -> None:
    """Break the graph at the call of a named module, which runs eagerly, but for a forward pass that Dynamo compiles by itself.

    The code that calls other modules is guarded: it holds while no rule names them.
    """
    from torch._dynamo.guards import install_guard

    variable = translator.get_local("module")._ComptimeVar__variable
    if _is_named(variable.value):
        translator.graph_break("msctx: rules name this module")
    if variable.source is not None:
        install_guard(variable.source.make_guard(_guard))


def _guard(builder: Any, guard: Any) -> None:
    """Under an accessor of its own, for Dynamo may skip guards that lie in a module's dictionary while that is unchanged:
    use_recursive_dict_tags_for_guards, which is on in torch 2.11.
    """
    from torch._dynamo.guards import GuardManagerType

    text = f"no rule of msctx names {guard.name}"
    manager = builder.get_guard_manager(guard).lambda_manager
    manager(lambda module: not _is_named(module), text, True, GuardManagerType.GUARD_MANAGER).add_lambda_guard(
        bool, [text], guard.user_stack
    )


def _install() -> Callable[[], None]:
    module_calls.WHEN_COMPILED.append(_keep_out)
    module_calls.turn(_enter, True, all_modules=False)
    had_fast_path = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # in which encoders and attention compute without calling their modules

    def remove() -> None:
        module_calls.WHEN_COMPILED.remove(_keep_out)
        module_calls.turn(_enter, False)
        mha.set_fastpath_enabled(mha.get_fastpath_enabled() or had_fast_path)

    return remove


installed = Held(_install)
"""Wanted by each policy with rules for modules that is in force in a thread, or in a checkpoint."""
