"""The policies for convolutions that are in force in the native core: one for each kind of device, sent whole."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache

from msctx.native import core
from msctx.options.conv_policy import ConvPolicy

IN_FORCE: dict[str, ConvPolicy] = {}
"""Place, one of :data:`core.PLACES` → its policy."""
COMING: list[Callable[[], object]] = []
"""What is called before another policy is in force in the library."""
LOAD = {"cpu": core.load, "cuda": core.load_with_cuda, "ascend": core.load_with_npu}
"""Place → what brings the library that carries a policy out there."""
_lock = threading.Lock()


def write(place: str, policy: ConvPolicy | None) -> None:
    with _lock:
        if policy is None:
            IN_FORCE.pop(place, None)
            if (library := core.loaded()) is None:
                return
            library.set_policy(place, None)
        else:
            from msctx.native import tuning

            library, IN_FORCE[place] = LOAD[place](), policy
            for note in COMING:
                note()
            number = tuning.table(library, policy.tuning_file, place) if policy.measures else 0
            records = os.path.join(policy.work_path, tuning.IN_WORK_PATH) if policy.work_path is not None else None
            recording = tuning.table(library, records, place, only_records=True) if records else 0
            library.set_policy(place, _json(policy, number, recording))
        if measured := sys.modules.get("msctx.native.tuning"):
            measured.keep(library)


@lru_cache(maxsize=64)
def _json(policy: ConvPolicy, tuning: int, recording: int) -> str:
    """The policy as PolicyOptions reads it (kernels/include/msctx/policy.h): with its rules, and the numbers of tables for paths."""
    tables = {"tuning_file": tuning, "work_path": recording}
    return core.json_of({**asdict(policy), **tables, "rules": [asdict(rule) for rule in policy.rules]})
