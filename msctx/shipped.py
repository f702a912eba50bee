"""The folders that travel with msctx: inside the package once it is installed, beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    installed = PACKAGE / f"_{name}"  # as pyproject.toml has it
    return installed if installed.is_dir() else PACKAGE.parent / name


CONFIGS = _folder("configs")
KERNEL_SOURCES = _folder("kernels")
