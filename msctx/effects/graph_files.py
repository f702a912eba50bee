"""save_graphs, save_graphs_path: the graphs that torch.compile goes through, in files; and how modules are named there."""

from __future__ import annotations

import os
from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured
from msctx.effects.compilation import apart
from msctx.effects.compile_cache import cache
from msctx.options.observation import GraphFiles

TEXT = "files have PyTorch's text of graphs, not MindSpore's IR"
NO_STAGES = f"{TEXT}; graphs that torchair compiles are saved as they are captured"
CACHED = f"{TEXT}; code from a cache leaves the graphs that were recorded with it"


def graph_files(want: Want) -> GraphFiles | None:
    level = want.other("save_graphs", 0)
    return GraphFiles(level, want.other("save_graphs_path", ".")) if level else None


@effect("save_graphs", "save_graphs_path")
def saving(want: Want) -> Outcome:
    files = graph_files(want)
    if files is None:
        return honoured({"observers.graph_files": None}) if want.option.name == "save_graphs" else NOTHING_ASKED
    found: dict[str, Any] = {"observers.graph_files": files} | apart(want)
    kept = cache(want.shared)
    is_cached = kept is not None and not kept.off
    if not is_cached:
        found["torch.inductor.fx_graph_cache"] = False
    if files.level >= 3:
        rank = f"rank_{os.environ['RANK']}" if "RANK" in os.environ else ""
        folder = os.path.join(os.path.expanduser(files.path), rank)
        found |= {"torch.inductor.trace.enabled": True, "torch.inductor.trace.debug_dir": folder}
    return approximated(found, NO_STAGES if want.device == "ascend" else CACHED if is_cached else TEXT)


@effect("reserve_class_name_in_scope")
def reserve_class_name_in_scope(want: Want) -> Outcome:
    return honoured({"observers.class_names": want.value})
