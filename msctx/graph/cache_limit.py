"""How large a cache of compiled code may become, and what goes when it is larger: what nobody has used for longest."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msctx.locks import imported
from msctx.notices import warn

INI = "op_cache.ini"
OPTION = "session.op_compiler_cache_dir.op_cache_ini"
SIZE, RATIO = "ASCEND_MAX_OP_CACHE_SIZE", "ASCEND_REMAIN_CACHE_SIZE_RATIO"
MEGABYTE = 2**20
IDLE = 30 * 60
"""Seconds after which a file counts as idle. Others stay: a process may be about to load them."""
_TEMPLATE = """# Limits of this cache, in MB and in percent of that; both count, or neither. -1: no limit.
[op_compiler_cache]
# max_op_cache_size=500
# remain_cache_size_ratio=50
"""


class Limit(NamedTuple):
    megabytes: int = 500
    percent: int = 50


def write_ini(root: Path) -> None:
    """Leave a file in which people can set limits, where there is none."""
    with suppress(FileExistsError), (root / INI).open("x", encoding="utf-8") as file:
        file.write(_TEMPLATE)


def found(root: Path) -> Limit:
    """The limits that hold for a folder of kernels: of its own file, else of the environment, else CANN's."""
    return _of_file(root / INI) or _of_environment() or Limit()


def _of_file(path: Path) -> Limit | None:
    imported("msctx.options.formats")
    from msctx.options.formats import OP_CACHE

    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        _warn(f"{path} is ignored: {error}")
        return None
    if text == _TEMPLATE:
        return None
    parsed = OP_CACHE.parse(text, str(path))
    if parsed.problems:
        _warn("\n".join(["its limits are ignored, both:", *map(str, parsed.problems)]))
        return None
    section = parsed.data["op_compiler_cache"]
    return Limit(section["max_op_cache_size"], section["remain_cache_size_ratio"])


def _of_environment() -> Limit | None:
    given = [os.environ.get(name, "") for name in (SIZE, RATIO)]
    if not any(given):
        return None
    numbers = [int(text) if re.fullmatch(r"-?\d+", text) else 0 for text in (given[0] or "500", given[1] or "50")]
    if (numbers[0] != -1 and numbers[0] < 1) or not 1 <= numbers[1] <= 100:
        shown = f"{SIZE}={given[0]} {RATIO}={given[1]}"
        _warn(f"{shown} is ignored: the size is -1 or at least 1 (MB), the ratio is from 1 to 100 (percent)")
        return None
    return Limit(*numbers)


def _warn(text: str) -> None:
    warn(OPTION, text, f"{OPTION}: {text}")


def keep_within(folders: Iterable[Path], limit: Limit, skip: frozenset[str]) -> int:
    """Remove what has been idle for longest, if there is more than the limit, until the ratio is left; returns how many bytes went.

    Other processes may do the same at once, and use what is left.
    """
    if limit.megabytes < 0:
        return 0
    listed = []
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(OSError):
                status = path.lstat()
                if path.name not in skip and not path.is_dir():
                    listed.append((max(status.st_mtime, status.st_atime), str(path), status.st_size))
    total = before = sum(size for *_, size in listed)
    if total <= limit.megabytes * MEGABYTE:
        return 0
    left = limit.megabytes * MEGABYTE * limit.percent / 100
    newest = time.time() - IDLE
    for used, path_, size in sorted(listed):
        if total <= left or used > newest:
            break
        with suppress(OSError):
            Path(path_).unlink(missing_ok=True)
            total -= size
    return before - total
