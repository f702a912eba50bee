"""Texts of what fusion does to each graph, in the folder graph_kernel_dump."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from msctx.inductor_pass import passes_of
from msctx.observers import files

FOLDER = "graph_kernel_dump"
STAGES = {
    "joint_custom_pre_pass": "before_passes",
    "joint_custom_post_pass": "after_joint_passes",
    "post_grad_custom_post_pass": "after_passes",
}
"""Entry of inductor's configuration that takes a pass over the graph → the name of the stage."""
KERNELS = {"_pre_fusion_custom_pass": "kernels_before_fusion", "_post_fusion_custom_pass": "kernels_after_fusion"}
"""The same of what is scheduled."""


def _in_turn(passes: Sequence[Callable[[fx.Graph], None]]) -> Callable[[fx.Graph], None]:
    """One pass in place of several, of which inductor takes a list since torch 2.13."""

    def run(graph: fx.Graph) -> None:
        for one in passes:
            one(graph)

    return run


def hooks() -> dict[str, Any]:
    """Entries of inductor's configuration that write a file for each stage of each graph, beside what the program has there."""
    from torch._inductor import config, custom_graph_pass

    several = list if hasattr(custom_graph_pass, "get_custom_graph_passes") else _in_turn
    found: dict[str, Any] = {key: _kernels(stage, getattr(config, key)) for key, stage in KERNELS.items()}
    for key, stage in STAGES.items():
        theirs, mine = passes_of(getattr(config, key)), functools.partial(_graph, stage)
        found[key] = several([mine, *theirs] if key.endswith("pre_pass") else [*theirs, mine])
    return found


def write(stage: str, graph: fx.GraphModule) -> None:
    _write(stage, graph.print_readable(print_output=False, include_stride=True))


def _graph(stage: str, graph: fx.Graph) -> None:
    owner = graph.owning_module
    if owner is None:
        _write(stage, str(graph))
    else:
        write(stage, owner)


def _kernels(stage: str, theirs: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def run(nodes: Any) -> Any:
        nodes = nodes if theirs is None else theirs(nodes)
        _write(stage, "\n".join(node.debug_str() for node in nodes))
        return nodes

    return run


def _write(stage: str, text: str) -> None:
    folder = Path(FOLDER, f"rank_{files.rank()}") if files.is_one_of_several() else Path(FOLDER)

    def work() -> None:
        files.write(folder / f"{next(_numbers(folder.absolute())):04}_{stage}.txt", text + "\n")

    files.guarded("graph_kernel_flags", folder, work)


@functools.cache
def _numbers(folder: Path) -> Iterator[int]:
    """They go on from those of the files that are there."""
    there = (path.name.partition("_")[0] for path in folder.glob("*_*.txt"))
    return itertools.count(max((int(number) + 1 for number in there if number.isdecimal()), default=0))
