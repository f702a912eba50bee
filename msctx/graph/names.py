"""Names in lists of graph_kernel_flags that matched nothing in what was compiled."""

from __future__ import annotations

from collections.abc import Iterable

from msctx.native.scope_counter import ScopeCounter

OPERATOR_FLAGS = (
    *("enable_cluster_ops", "enable_cluster_ops_only", "disable_cluster_ops"),
    *("enable_expand_ops", "enable_expand_ops_only", "disable_expand_ops"),
)
PASS_FLAGS = ("enable_pass", "disable_pass")
SIMPLIFICATION_FLAGS = ("enable_simplify_exprs_only", "disable_simplify_exprs")
PATTERN_FLAGS = ("enable_fusion_pattern_only", "disable_fusion_pattern")
LISTS = {
    **dict.fromkeys(OPERATOR_FLAGS, "operator"),
    **dict.fromkeys(PASS_FLAGS, "pass"),
    **dict.fromkeys(SIMPLIFICATION_FLAGS, "simplification"),
    **dict.fromkeys(PATTERN_FLAGS, "pattern"),
}
"""Flag → what its names are of."""

_compiled = 0
_matched: dict[tuple[str, str], int] = {}
"""(flag, name) → how many graphs had been compiled when it last matched."""


def split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))


def compiling() -> None:
    """A graph is compiled; its backward pass may be later."""
    global _compiled
    _compiled += 1


def matched(found: Iterable[tuple[str, str]]) -> None:
    """These names matched something in what was last compiled."""
    _matched.update(dict.fromkeys(found, _compiled))


class Tally(ScopeCounter):
    """Reports at the end of a context which names of its own lists matched nothing, where something was compiled."""

    def __init__(self, lists: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__()
        self._names = [(flag, name) for flag, text in lists for name in split(text)]
        self._since = 0

    def __reduce__(self) -> tuple[type[Tally], tuple[object]]:
        return Tally, ([*self._names],)

    def _begin(self) -> None:
        self._since = _compiled

    def _end(self) -> list[str]:
        if _compiled == self._since:
            return []
        return [
            f"graph_kernel_flags: --{flag}={name} matched no {LISTS[flag]} in what was compiled"
            for flag, name in self._names
            if _matched.get((flag, name), 0) <= self._since
        ]
