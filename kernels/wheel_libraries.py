"""A hook of hatchling: the wheel brings the libraries of the folder that MSCTX_LIBRARIES names (`make dist`)."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Libraries(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if folder := os.environ.get("MSCTX_LIBRARIES"):
            libraries = {str(path): f"msctx/_libraries/{path.name}" for path in Path(folder).glob("*.so")}
            tag = f"py3-none-linux_{platform.machine()}"
            build_data.update(pure_python=False, tag=tag, force_include={**build_data["force_include"], **libraries})
