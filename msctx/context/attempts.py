"""Putting back one thing after the other, whatever raises in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msctx.errors import RestoreError

Steps = Mapping[str, Callable[[], None]]
"""The name of a switch → what puts it back."""


def try_all(steps: Steps) -> tuple[list[str], BaseException | None]:
    """Put everything back, by switch; returns what cannot be, and what came between and is to be raised at the end.

    What raised is tried once more: a switch that cannot be put back raises again, what was only interrupted does not.
    """
    interruption: BaseException | None = None
    for _ in range(2):
        failed: dict[str, BaseException] = {}
        for name, step in steps.items():
            try:
                step()
            except BaseException as error:
                interruption = interruption or error
                failed[name] = error
        if not failed:
            return [], interruption
        steps = {name: steps[name] for name in failed}
    lines = [f"{name}: {error}" for name, error in failed.items()]
    return lines, None if isinstance(interruption, Exception) else interruption


def raise_failed(failed: list[str], interruption: BaseException | None) -> None:
    if interruption is not None:
        raise interruption
    if failed:
        raise RestoreError("could not be put back:\n" + "\n".join(f"  {line}" for line in failed))
