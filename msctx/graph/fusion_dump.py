"""Texts of what fusion does to each graph, in the folder graph_kernel_dump."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from msctx.inductor_pass import passes_of
from msctx.notices import warn

FOLDER = "graph_kernel_dump"
STAGES = {
    "joint_custom_pre_pass": "before_passes",
    "joint_custom_post_pass": "after_joint_passes",
    "post_grad_custom_post_pass": "after_passes",
}
"""Entry of inductor's configuration that takes a pass over the graph → the name of the stage."""
KERNELS = {"_pre_fusion_custom_pass": "kernels_before_fusion", "_post_fusion_custom_pass": "kernels_after_fusion"}
"""The same of what is scheduled."""

_numbers = itertools.count()


def _in_turn(passes: Sequence[Callable[[fx.Graph], None]]) -> Callable[[fx.Graph], None]:
    """One pass in place of several, of which inductor takes a list since torch 2.13."""

    def run(graph: fx.Graph) -> None:
        for one in passes:
            one(graph)

    return run


class Dump:
    """Writes one file for each stage of each graph, numbered in the order of this process; each rank in its own folder."""

    def hooks(self) -> dict[str, Any]:
        """Entries of inductor's configuration, beside what the program has there."""
        from torch._inductor import config, custom_graph_pass

        several = list if hasattr(custom_graph_pass, "get_custom_graph_passes") else _in_turn
        found: dict[str, Any] = {}
        for key, stage in STAGES.items():
            theirs = passes_of(getattr(config, key))
            mine = self._pass(stage)
            found[key] = several([mine, *theirs] if key.endswith("pre_pass") else [*theirs, mine])
        for key, stage in KERNELS.items():
            found[key] = self._kernels(stage, getattr(config, key))
        return found

    def graph(self, stage: str, graph: fx.GraphModule) -> None:
        self._write(stage, graph.print_readable(print_output=False, include_stride=True))

    def _pass(self, stage: str) -> Callable[[fx.Graph], None]:
        def write(graph: fx.Graph) -> None:
            owner = graph.owning_module
            self._write(stage, str(graph) if owner is None else owner.print_readable(print_output=False, include_stride=True))

        return write

    def _kernels(self, stage: str, theirs: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        def write(nodes: Any) -> Any:
            nodes = nodes if theirs is None else theirs(nodes)
            self._write(stage, "\n".join(node.debug_str() for node in nodes))
            return nodes

        return write

    def _write(self, stage: str, text: str) -> None:
        rank = os.environ.get("RANK")
        folder = Path(FOLDER, f"rank_{rank}") if rank else Path(FOLDER)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{next(_numbers):04}_{stage}.txt").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            warn("graph_kernel_flags", "dump", f"graph_kernel_flags: --dump_as_text cannot write to {folder}: {error.strerror}")
