"""save_graphs, save_graphs_path: the graphs that torch.compile goes through, in files; and how modules are named there."""

from __future__ import annotations

from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured
from msctx.effects.compilation import apart
from msctx.effects.compile_cache import cache
from msctx.options.observation import GraphFiles

NOT_CACHED = "torch's caches are off: code that comes from one passes no stage"
NO_STAGES = (
    "of graphs that torchair compiles: as they are captured, and after its passes in torch; inductor's stages are not theirs"
)
CACHED = "code that comes from the cache leaves the graph that Dynamo captured, and no other"


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
    if want.device == "ascend":
        return approximated(found, NO_STAGES)
    return approximated(found, CACHED) if is_cached else honoured(found, NOT_CACHED)


@effect("reserve_class_name_in_scope")
def reserve_class_name_in_scope(want: Want) -> Outcome:
    return honoured({"observers.class_names": want.value})
