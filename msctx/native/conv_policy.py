"""The policies for convolutions that are in force in the native core: one for each kind of device, sent whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from msctx import locks
from msctx.native import core
from msctx.options.conv_policy import ConvPolicy


class InForce:
    """What is in force at a place, which is one of :data:`core.PLACES`."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.policy: ConvPolicy | None = None

    @property
    def load(self) -> Callable[[], core.Core]:
        """What brings the library that carries it out."""
        return {"cpu": core.load, "cuda": core.load_with_cuda, "ascend": core.load_with_npu}[self.place]

    def read(self) -> dict[str, Any] | None:
        """As plain data."""
        return None if self.policy is None else self.policy.as_dict()

    def take(self) -> ConvPolicy | None:
        return self.policy

    def is_in_force(self, policy: ConvPolicy | None) -> bool:
        return policy == self.policy

    def write(self, policy: ConvPolicy | None) -> None:
        with _lock:
            if policy is not None:
                from msctx.native import tuning

                library = self.load()
                number = tuning.table(library, policy.tuning_file, self.place) if policy.measures else 0
                records = os.path.join(policy.work_path, tuning.IN_WORK_PATH) if policy.work_path is not None else None
                recording = tuning.table(library, records, self.place, only_records=True) if records else 0
                library.set_policy(self.place, _json(policy, number, recording))
            elif (loaded := core.loaded()) is not None:
                loaded.set_policy(self.place, None)
            self.policy = policy
            if (loaded := core.loaded()) is not None and (measured := sys.modules.get("msctx.native.tuning")):
                measured.keep(loaded)


_lock = locks.plain()


@lru_cache(maxsize=64)
def _json(policy: ConvPolicy, tuning: int, recording: int) -> str:
    """The policy as PolicyOptions reads it (kernels/include/msctx/policy.h): with its rules, and the numbers of tables for paths."""
    tables = {"tuning_file": tuning, "work_path": recording}
    return core.json_of({**asdict(policy), **tables, "rules": [asdict(rule) for rule in policy.rules]})


PLACES = {place: InForce(place) for place in core.PLACES}
