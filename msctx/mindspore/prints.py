"""MindSpore's reader of printed values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msctx.errors import FileError
from msctx.mindspore.errors import raise_first

if TYPE_CHECKING:
    import torch


def parse_print(print_file_name: Any) -> list[str | torch.Tensor]:
    """:func:`msctx.parse_print` with MindSpore's exceptions.

    Raises:
        ValueError: the file is missing or empty.
        RuntimeError: the file holds something else than printed values.
    """
    from msctx.observers.print_format import parse_print

    try:
        return parse_print(print_file_name)
    except FileError as error:
        full = os.path.isfile(print_file_name) and os.path.getsize(print_file_name)
        raise_first([(RuntimeError if full else ValueError, problem) for problem in error.problems])
        raise
