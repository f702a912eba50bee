"""The folders that travel with msctx: inside the package once it is installed, beside it in a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


CONFIGS, KERNEL_SOURCES = (
    installed if (installed := PACKAGE / f"_{name}").is_dir() else PACKAGE.parent / name for name in ("configs", "kernels")
)
"""Inside the package as pyproject.toml has it."""
LIBRARIES = PACKAGE / "_libraries"
"""The native core that a wheel brings; a checkout has none."""


def shipped(folder: str) -> dict[str, Path]:
    """The YAML files in a folder of configs, by name."""
    return {path.stem: path for path in sorted((CONFIGS / folder).glob("*.yaml"))}
